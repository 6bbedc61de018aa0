// The same answer once more, at the speed people are used to.
import { byId, setText } from "./dom.js";
import { count, duration, figure } from "./format.js";
import { msPerToken } from "./timeline.js";

const RIVAL = 100; // tokens per second
const AGENT_RUN = 50_000; // tokens

export class Race {
  constructor() {
    this.answer = null;
    this.running = 0;
    byId("race-again").addEventListener("click", () => this.start(this.answer, true));
  }

  /** Begin at the first token of an answer that is being written, or run one that is over `again`. */
  start(answer, again = false) {
    cancelAnimationFrame(this.running);
    this.answer = answer;
    this.again = again;
    this.started = again ? performance.now() : answer.timeline.origin;
    byId("replay").textContent = "";
    this.#frame();
  }

  /** Nothing to race with. */
  clear() {
    cancelAnimationFrame(this.running);
    this.answer = null;
    for (const lane of ["ours", "theirs"]) {
      byId(lane).value = 0;
      setText(byId(`${lane}-time`), "–");
    }
    setText(byId("replay"), `Here the same answer runs once more, at ${RIVAL} tokens per second.`);
    setText(byId("saving"), duration((AGENT_RUN * 1000) / RIVAL));
    setText(byId("saving-how"), `is what an agent run of ${count(AGENT_RUN)} tokens takes at ${RIVAL} tok/s`);
    byId("race-again").disabled = true;
  }

  /** An answer that is over, as the race ended. */
  showEnd(answer) {
    cancelAnimationFrame(this.running);
    this.answer = answer;
    this.again = true;
    this.started = -Infinity;
    byId("replay").textContent = "";
    this.#frame();
  }

  #frame() {
    const { timeline, text, phase } = this.answer;
    const elapsed = performance.now() - this.started;
    const total = timeline.tokens;
    const over = phase === "over";
    const ours = this.again ? timeline.tokensAt(elapsed) : total;
    const oursMs = Math.min(elapsed, timeline.lengthMs);
    const finishMs = (total * 1000) / RIVAL;
    const theirs = Math.min(total, (Math.min(elapsed, finishMs) * RIVAL) / 1000);
    const finished = (lane) => over && lane >= total;

    byId("ours").value = ours / total;
    byId("theirs").value = theirs / total;
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
    const [here, there] = [AGENT_RUN * ms, (AGENT_RUN * 1000) / RIVAL];
    const faster = here < there;
    setText(byId("saving"), `${duration(Math.abs(there - here))} ${faster ? "saved" : "longer"}`);
    const times = faster ? `, ${there / here < 10 ? figure(there / here) : count(there / here)} times as fast` : "";
    setText(
      byId("saving-how"),
      `on a ${count(AGENT_RUN)}-token agent run: ${duration(here)} instead of ${duration(there)}${times}`,
    );
  }
}
