// The conversation on the page: asking, and what is shown of the answers; editing; opening another.
import { fill, freshAnswer, wordsOf } from "./answering.js";
import { showContext } from "./context.js";
import { Conversation } from "./conversation.js";
import { byId, setText } from "./dom.js";
import { count } from "./format.js";
import { perFrame } from "./frames.js";
import { pageIn } from "./page.js";
import { choose, current, forget, keep } from "./shelf.js";
import { msPerToken } from "./timeline.js";
import { TurnView } from "./turn.js";
import { hint, isNarrow, show } from "./views.js";

const KEEP_MS = 1000; // between two times that an answer is kept while it comes

const say = (text) => setText(byId("announce"), text);

export class Talk {
  /**
   * `parts` are the composer, settings, picker, instruments, speeds, race and preview of the page; `unlock()` gets
   * another key for the server, and is true when it has one.
   */
  constructor(parts, unlock) {
    Object.assign(this, parts, { unlock });
    this.conversation = current();
    this.views = [];
    this.running = null; // the AbortController of the answer that comes
    this.machine = null; // what /machine said; null: the server is not ready
    addEventListener("pagehide", () => {
      this.leaving = this.running !== null;
      if (this.leaving) keep(this.conversation);
    });
    addEventListener("pageshow", ({ persisted }) => persisted && this.leaving && location.reload());
  }

  // --- asking ---

  async send(prompt) {
    if (this.running || !this.machine) return;
    this.conversation.turns.push({ prompt, answer: this.#next() });
    this.#addView(this.conversation.turns.at(-1));
    this.composer.clear();
    await this.#answer();
  }

  async retry() {
    if (!this.running && this.machine) await this.#askAgain(this.#next());
  }

  stop() {
    this.running?.abort();
  }

  /** An answer that was on its way when the page was reloaded: the same question, with the same seed. */
  async resume() {
    const answer = this.conversation.turns.at(-1)?.answer;
    if (answer && answer.phase !== "over" && !this.running) {
      await this.#askAgain(freshAnswer(answer, wordsOf(answer)));
    }
  }

  #next() {
    const { model } = this.picker;
    const { context, can_chat } = this.machine;
    return freshAnswer({ ...this.settings.values(), ...(model && { model }), context, continues: !can_chat });
  }

  async #askAgain(answer) {
    const turn = this.conversation.turns.at(-1);
    turn.answer = answer;
    this.views.pop().node.remove();
    this.#addView(turn);
    await this.#answer();
  }

  async #answer() {
    const { conversation, composer } = this;
    const { answer } = conversation.turns.at(-1);
    const view = this.views.at(-1);
    const changed = perFrame(() => this.#paint(answer, view));
    this.running = new AbortController();
    composer.busy(true);
    this.preview.clear();
    this.race.clear();
    if (document.body.dataset.view === "preview") show(isNarrow() ? "answer" : "race");
    byId("talk").scrollTop = byId("talk").scrollHeight;
    say("Answering");
    this.#keep(conversation);
    const keeping = setInterval(() => this.#keep(conversation), KEEP_MS);
    const question = conversation.question(this.machine.context);
    const needsKey = await fill(answer, question, this.running.signal, changed);
    clearInterval(keeping);
    if (this.leaving) return; // it was kept as it was; the page asks again when it is back
    this.running = null;
    this.speeds.add(answer);
    composer.busy(false);
    if (conversation.turns.at(-1)?.answer === answer) this.#keep(conversation);
    if (!this.views.includes(view)) return; // another conversation has been opened meanwhile
    changed.now();
    say(report(answer));
    if (needsKey && (await this.unlock())) await this.retry();
  }

  #keep(conversation) {
    conversation.changed = Date.now();
    if (!keep(conversation)) say("This browser has no room for more conversations: delete old ones to keep this one.");
  }

  /** Everything that shows the answer, once per picture. */
  #paint(answer, view) {
    if (!this.views.includes(view)) return;
    const talk = byId("talk");
    const following = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80; // pixels
    view.update();
    if (following) talk.scrollTop = talk.scrollHeight;
    this.showNumbers(answer);
    this.race.follow(answer);
    const source = pageIn(answer.text);
    if (source === null) return;
    if (this.preview.source === null) isNarrow() ? hint("preview") : show("preview");
    this.preview.show(source, answer.phase === "over");
  }

  /** Of an answer, or of the last one. */
  showNumbers(answer = this.conversation.turns.at(-1)?.answer) {
    this.instruments.show(answer);
    showContext(answer, this.machine?.context);
  }

  // --- the conversation ---

  startOver() {
    this.open(new Conversation({ system: this.conversation.system }));
    this.composer.focus();
  }

  open(conversation) {
    this.stop();
    for (const { answer } of conversation.turns) {
      if (answer.phase === "over") continue; // else a tab was closed while it came
      Object.assign(answer, { phase: "over", reason: "stopped", text: wordsOf(answer) });
    }
    this.conversation = conversation;
    keep(conversation);
    for (const view of this.views.splice(0)) view.node.remove();
    this.race.clear();
    this.preview.clear();
    show(isNarrow() ? "answer" : "race");
    this.show();
  }

  show() {
    const { conversation } = this;
    choose(conversation);
    this.settings.system = conversation.system;
    for (const turn of conversation.turns) this.#addView(turn);
    this.#changed();
    const last = conversation.turns.at(-1)?.answer;
    if (last?.timeline.msPerToken) this.race.showEnd(last);
    byId("talk").scrollTop = byId("talk").scrollHeight;
  }

  set system(text) {
    this.conversation.system = text;
    keep(this.conversation);
  }

  renamed({ id, name }) {
    if (id === this.conversation.id) this.conversation.name = name;
  }

  gone(id) {
    if (id !== this.conversation.id) return;
    this.conversation.turns = []; // so that the answer on its way does not keep it again
    this.startOver();
  }

  #addView(turn) {
    const { answer } = turn;
    const view = new TurnView(turn, {
      retry: () => this.retry(),
      edit: (prompt) => this.#edit(turn, prompt),
      remove: () => this.#remove(turn, view),
      race: () => {
        this.instruments.show(answer);
        show("race");
        this.race.start(answer, true);
      },
      preview: () => {
        show("preview");
        this.preview.show(pageIn(answer.text), true);
      },
      startOver: () => this.startOver(),
      leaveOutOldest: () => {
        if (!this.running) this.conversation.leaveOutOldest();
        this.#changed();
        return this.retry();
      },
    });
    this.views.push(view);
    byId("turns").append(view.node);
    byId("empty").hidden = true;
  }

  /** Another question in place of one: what followed is gone, as it answered the other. */
  async #edit(turn, prompt) {
    if (this.running || !this.machine) return;
    const index = this.conversation.turns.indexOf(turn);
    this.conversation.turns.splice(index);
    this.conversation.leftOut = Math.min(this.conversation.leftOut, index);
    for (const view of this.views.splice(index)) view.node.remove();
    await this.send(prompt);
  }

  #remove(turn, view) {
    if (this.running) return;
    this.conversation.remove(turn);
    this.views.splice(this.views.indexOf(view), 1);
    view.node.remove();
    if (this.conversation.turns.length) this.#keep(this.conversation);
    else forget(this.conversation);
    this.#changed();
  }

  #changed() {
    const { turns, leftOut } = this.conversation;
    this.views.forEach(({ node }, i) => node.classList.toggle("left-out", i < leftOut));
    byId("empty").hidden = !this.machine || turns.length > 0;
    this.showNumbers();
  }
}

function report(answer) {
  const { error, reason, timeline } = answer;
  if (error) return error;
  const ms = msPerToken(answer);
  const speed = ms ? `, ${count(1000 / ms)} tokens per second` : "";
  return `${reason === "stopped" ? "Stopped" : "Answer complete"}: ${count(timeline.tokens)} tokens${speed}`;
}
