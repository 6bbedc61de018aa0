// The same answer once more, at a speed that this machine beats.
import { byId, setText } from "./dom.js";
import { count, duration, figure } from "./format.js";
import { msPerToken } from "./timeline.js";

const RIVALS = [100, 50, 30, 20, 10, 5]; // tokens per second; the first is what people are used to
const BEATEN = 1.25; // times as fast at least, or it is no race
const KNOWN = { tokens: 8, ms: 250 }; // of an answer, until its speed is known
const AGENT_RUN = 50_000; // tokens
const FIRST_SCALE = 64; // tokens that the bars have room for at first; doubled when they are full

/** The speed to race against, in tokens per second; null where there is none that is beaten. */
export function rivalOf(tokensPerSecond) {
  return RIVALS.find((rival) => tokensPerSecond >= BEATEN * rival) ?? null;
}

export class Race {
  constructor() {
    this.answer = null;
    this.running = 0;
    byId("race-again").addEventListener("click", () => this.start(this.answer, true));
  }

  /**
   * An answer that is being written joins when its speed is known; the race is as old as its first token. At its end
   * the engine's own clock may say that another speed is the one to race against.
   */
  follow(answer) {
    const { timeline, phase } = answer;
    const ms = msPerToken(answer);
    if (!ms) return;
    const known = phase === "over" || (timeline.tokens >= KNOWN.tokens && timeline.lengthMs >= KNOWN.ms);
    const another = phase === "over" && rivalOf(1000 / ms) !== this.rival;
    if (known && (this.answer !== answer || another)) this.start(answer);
  }

  /** Begin at the first token of an answer that is being written, or run one that is over `again`. */
  start(answer, again = false) {
    this.#line(answer);
    this.again = again;
    this.started = again ? performance.now() : (answer.timeline.origin ?? -Infinity);
    if (this.rival) this.#frame();
  }

  /** Nothing to race with. */
  clear() {
    cancelAnimationFrame(this.running);
    this.answer = null;
    this.#show(true);
    for (const lane of ["ours", "theirs"]) {
      byId(lane).value = 0;
      setText(byId(`${lane}-time`), "–");
    }
    setText(byId("rival"), "slower");
    setText(byId("race-scale"), "");
    setText(byId("replay"), "Here the same answer runs once more, at a speed that this machine beats.");
    setText(byId("saving"), "");
    setText(byId("saving-how"), "");
    byId("race-again").disabled = true;
  }

  /** An answer that is over, as the race ended. */
  showEnd(answer) {
    this.#line(answer);
    this.again = true;
    this.started = -Infinity;
    if (this.rival) this.#frame();
  }

  #line(answer) {
    cancelAnimationFrame(this.running);
    this.answer = answer;
    this.rival = rivalOf(1000 / msPerToken(answer));
    this.#show(this.rival !== null);
    byId("replay").textContent = "";
    setText(byId("rival"), `${this.rival} tok/s`);
    byId("theirs").setAttribute("aria-label", `Progress at ${this.rival} tokens per second`);
    byId("replay").setAttribute("aria-label", `The same answer at ${this.rival} tokens per second`);
  }

  #show(shown) {
    byId("race").toggleAttribute("data-none", !shown);
    byId("no-race").hidden = shown;
    setText(byId("tab-race"), shown ? "Race" : "Speed");
  }

  #frame() {
    const { rival } = this;
    const { timeline, text, phase, max_tokens } = this.answer;
    const elapsed = performance.now() - this.started;
    const total = timeline.tokens;
    const over = phase === "over";
    const ours = this.again ? timeline.tokensAt(elapsed) : total;
    const oursMs = Math.min(elapsed, timeline.lengthMs);
    const finishMs = (total * 1000) / rival;
    const theirs = Math.min(total, (Math.min(elapsed, finishMs) * rival) / 1000);
    const finished = (lane) => over && lane >= total;

    // How long the answer will be is known at its end. Until then the bars have room for a round number of tokens.
    const room = max_tokens ?? FIRST_SCALE * 2 ** Math.max(0, Math.ceil(Math.log2((total + 1) / FIRST_SCALE)));
    const scale = over ? total : room;
    setText(byId("race-scale"), over ? `${count(total)} tokens` : `of ${count(room)} tokens`);
    byId("ours").value = ours / scale;
    byId("theirs").value = theirs / scale;
    setText(byId("ours-time"), `${duration(Math.max(oursMs, 1))}${finished(ours) ? " ✓" : ""}`);
    setText(
      byId("theirs-time"),
      `${duration(Math.max(Math.min(elapsed, finishMs), 1))}${finished(theirs) ? " ✓" : ""}`,
    );
    this.#replay(text, timeline.charactersAt(theirs));
    this.#saving();

    const done = finished(ours) && finished(theirs);
    byId("race-again").disabled = !over;
    if (!done) this.running = requestAnimationFrame(() => this.#frame());
  }

  #replay(text, characters) {
    const pane = byId("replay");
    const shown = pane.textContent.length;
    if (characters <= shown) return;
    pane.firstChild
      ? pane.firstChild.appendData(text.slice(shown, characters))
      : pane.append(text.slice(0, characters));
    pane.scrollTop = pane.scrollHeight;
  }

  #saving() {
    const ms = msPerToken(this.answer);
    if (!ms) return;
    const [here, there] = [AGENT_RUN * ms, (AGENT_RUN * 1000) / this.rival];
    setText(byId("saving"), here < there ? `${duration(there - here)} saved` : "");
    const times = there / here < 10 ? figure(there / here) : count(there / here);
    const compared = `${duration(here)} instead of ${duration(there)}, ${times} times as fast`;
    setText(byId("saving-how"), `on a ${count(AGENT_RUN)}-token agent run: ${compared}`);
  }
}
