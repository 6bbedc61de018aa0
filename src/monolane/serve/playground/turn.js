// One question and its answer, on the page.
import { wordsOf } from "./answering.js";
import { fit } from "./composer.js";
import { isFull } from "./context.js";
import { copyButton } from "./copy.js";
import { element, setText } from "./dom.js";
import { count, duration, figure } from "./format.js";
import { Markdown } from "./markdown.js";
import { pageIn } from "./page.js";
import { rivalOf } from "./race.js";
import { msPerToken } from "./timeline.js";
import { Verbatim } from "./verbatim.js";

export class TurnView {
  /** `actions`, for this turn: retry(), edit(prompt), remove(), race(), preview(), startOver(), leaveOutOldest(). */
  constructor(turn, actions) {
    const { prompt, answer } = turn;
    Object.assign(this, { turn, answer, actions });
    this.body = element("div", { className: "words" });
    this.note = element("p", { className: "note" });
    this.ways = element("p", { className: "ways" });
    this.foot = element("div", { className: "foot" });
    const parts = [this.body, this.note, this.ways, this.foot];
    this.article = element("article", { className: "answer", "aria-label": "Answer" }, ...parts);
    this.asked = element("div", { className: "question" });
    this.node = element("section", { className: "turn" }, ...(answer.continues ? [] : [this.asked]), this.article);
    if (!answer.continues) this.#ask();
    this.words = answer.continues ? new Verbatim(this.body, prompt) : new Markdown(this.body);
    this.shown = "";
    this.update();
  }

  /** Draw what has come since the last time. */
  update() {
    const { answer } = this;
    const text = wordsOf(answer);
    if (!text.startsWith(this.shown)) this.#again(); // asked again after a reload, it took another turn
    if (text) this.words.update(text, answer.phase === "over");
    this.shown = text;
    this.article.dataset.phase = answer.phase;
    this.article.setAttribute("aria-busy", String(answer.phase !== "over"));
    this.note.classList.toggle("wrong", Boolean(answer.error));
    setText(this.note, remark(answer));
    if (answer.phase === "over" && !this.foot.childElementCount) this.#end();
  }

  #again() {
    this.body.replaceChildren();
    this.words = new Markdown(this.body);
  }

  #button(label, act, name = label) {
    const made = element("button", { type: "button", className: "chip", "aria-label": name }, label);
    made.addEventListener("click", act);
    return made;
  }

  #ask() {
    const buttons = element("div", { className: "tools" });
    buttons.append(
      this.#button("Edit", () => this.#edit(), "Edit the question"),
      this.#button("Delete", this.actions.remove, "Delete question and answer"),
    );
    this.asked.replaceChildren(element("p", { className: "asked" }, this.turn.prompt), buttons);
  }

  #edit() {
    const box = element("textarea", { className: "asked", rows: 1, value: this.turn.prompt, "aria-label": "Question" });
    const done = () => box.value.trim() && this.actions.edit(box.value.trim());
    box.addEventListener("input", () => fit(box));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#ask();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        done();
      }
    });
    const buttons = element("div", { className: "tools open" });
    buttons.append(
      this.#button("Ask again", done),
      this.#button("Cancel", () => this.#ask()),
    );
    this.asked.replaceChildren(box, buttons);
    fit(box);
    box.focus();
  }

  #end() {
    const { answer, actions } = this;
    const ms = msPerToken(answer);
    const add = (label, act) => this.foot.appendChild(this.#button(label, act));
    if (answer.text) this.foot.append(copyButton("Copy the answer", () => answer.text));
    add("Retry", actions.retry).classList.add("retry");
    if (ms && rivalOf(1000 / ms)) add("Race", actions.race);
    if (pageIn(answer.text) !== null) add("Preview", actions.preview);
    if (answer.continues) add("Delete", actions.remove);
    this.foot.append(element("span", { className: "facts" }, facts(answer)));
    if (!isFull(answer)) return;
    this.ways.append(this.#button("New conversation", actions.startOver));
    if (!answer.continues) this.ways.append(this.#button("Leave out the oldest and ask again", actions.leaveOutOldest));
    this.ways.append(element("span", {}, "A server started with a larger --context has more room."));
  }
}

function remark(answer) {
  const { phase, ahead, error, reason, before, timings } = answer;
  if (error) return error;
  if (phase !== "over" && before) return "The page was reloaded: the same answer, with the same seed, is on its way";
  if (phase === "waiting") return ahead ? `In the queue, ${count(ahead)} before you` : "Reading your prompt";
  if (phase === "over" && reason === "stopped") return "Stopped";
  if (phase === "over" && reason === "length")
    return isFull(answer)
      ? "The context is full: the answer ends here."
      : `Ended after ${count(timings.generated_tokens)} tokens, the most that were allowed.`;
  return "";
}

function facts(answer) {
  const { timings, timeline, seed, temperature } = answer;
  const tokens = timings?.generated_tokens ?? timeline.tokens;
  const ms = msPerToken(answer);
  const speed = ms ? [`${figure(1000 / ms)} tok/s`, `${duration(ms)}/token`] : [];
  const cached = timings?.cached_tokens ? [`${count(timings.cached_tokens)} prompt tokens reused`] : [];
  return [`${count(tokens)} tokens`, ...speed, ...cached, `temperature ${temperature}`, `seed ${seed}`]
    .map((fact) => fact.replaceAll(" ", "\u00a0")) // lines break between facts
    .join("\u00a0· ");
}
