// One question and its answer, on the page.
import { copyButton } from "./copy.js";
import { element, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { Markdown } from "./markdown.js";
import { pageIn } from "./page.js";
import { msPerToken } from "./timeline.js";
import { Verbatim } from "./verbatim.js";

export class TurnView {
  /** `actions` are retry(), race() and preview(), for this turn. */
  constructor({ prompt, answer }, actions) {
    this.answer = answer;
    this.actions = actions;
    this.body = element("div", { className: "words" });
    this.note = element("p", { className: "note" });
    this.foot = element("div", { className: "foot" });
    this.article = element("article", { className: "answer", "aria-label": "Answer" }, this.body, this.note, this.foot);
    const asked = answer.continues ? [] : [element("p", { className: "asked" }, prompt)];
    this.node = element("section", { className: "turn" }, ...asked, this.article);
    this.words = answer.continues ? new Verbatim(this.body, prompt) : new Markdown(this.body);
    this.update();
  }

  /** Draw what has come since the last time. */
  update() {
    const { answer } = this;
    if (answer.text) this.words.update(answer.text);
    this.article.dataset.phase = answer.phase;
    this.article.setAttribute("aria-busy", String(answer.phase !== "over"));
    this.note.classList.toggle("wrong", Boolean(answer.error));
    setText(this.note, remark(answer));
    if (answer.phase === "over" && !this.foot.childElementCount) this.#end();
  }

  #end() {
    const { answer, actions } = this;
    const button = (label, act) => {
      const made = element("button", { type: "button", className: "chip" }, label);
      made.addEventListener("click", act);
      this.foot.append(made);
      return made;
    };
    if (answer.text) this.foot.append(copyButton("Copy the answer", () => answer.text));
    button("Retry", actions.retry).classList.add("retry");
    if (answer.timeline.msPerToken) button("Race", actions.race);
    if (pageIn(answer.text) !== null) button("Preview", actions.preview);
    this.foot.append(element("span", { className: "facts" }, facts(answer)));
  }
}

function remark({ phase, ahead, error, reason, continues }) {
  if (error) return error;
  if (phase === "waiting") return ahead ? `In the queue, ${count(ahead)} before you` : "Reading your prompt";
  if (phase === "over" && reason === "stopped") return "Stopped";
  if (phase === "over" && reason === "length")
    return `The context is full: the answer ends here.${continues ? "" : " Start a new conversation for more room."}`;
  return "";
}

function facts(answer) {
  const { timings, timeline, seed, temperature } = answer;
  const tokens = timings?.generated_tokens ?? timeline.tokens;
  const ms = msPerToken(answer);
  const speed = ms ? [`${count(1000 / ms)} tok/s`, `${duration(ms)}/token`] : [];
  const cached = timings?.cached_tokens ? [`${count(timings.cached_tokens)} prompt tokens reused`] : [];
  return [`${count(tokens)} tokens`, ...speed, ...cached, `temperature ${temperature}`, `seed ${seed}`]
    .map((fact) => fact.replaceAll(" ", "\u00a0")) // lines break between facts
    .join("\u00a0· ");
}
