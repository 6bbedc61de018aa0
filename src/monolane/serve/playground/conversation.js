// One conversation: what was said, and what of it is sent.
import { Timeline } from "./timeline.js";

/**
 * Turns are { prompt, answer }. An answer is { text, before, phase, reason, error, code, timings, timeline,
 * promptTokens, context, seed, temperature, top_p, max_tokens, continues }; its phase is "waiting", "writing" or "over".
 * `before`: what had come of it when the page was reloaded. `continues`: it goes on where the prompt ends, because the
 * model cannot chat.
 */
export class Conversation {
  constructor({ id = crypto.getRandomValues(new Uint32Array(2)).join("-"), name = "", system = "", leftOut = 0 } = {}) {
    this.id = id;
    this.name = name; // as the user has called it
    this.system = system;
    this.leftOut = leftOut; // turns at the beginning that are not sent any more
    this.changed = Date.now();
    this.turns = [];
  }

  static from(kept) {
    const conversation = new Conversation(kept);
    conversation.changed = kept.changed;
    conversation.turns = kept.turns.map(({ prompt, answer }) => ({
      prompt,
      answer: { ...answer, timeline: Timeline.from(answer.timeline) },
    }));
    return conversation;
  }

  get title() {
    return this.name || this.turns[0]?.prompt.trim().split("\n")[0].slice(0, 80) || "New conversation";
  }

  /**
   * What to send for the last turn: all before it that went well, and its prompt; or that alone, to be continued until
   * the `context` is full.
   */
  question(context) {
    const last = this.turns.at(-1);
    if (last.answer.continues) return { prompt: last.prompt, max_tokens: context };
    const messages = this.system ? [{ role: "system", content: this.system }] : [];
    for (const { prompt, answer } of this.turns.slice(this.leftOut, -1)) {
      if (!answer.text || answer.continues) continue;
      messages.push({ role: "user", content: prompt }, { role: "assistant", content: answer.text });
    }
    return { messages: [...messages, { role: "user", content: last.prompt }] };
  }

  /** Send half of what was sent until now; false where only the last question is left. */
  leaveOutOldest() {
    const more = Math.ceil((this.turns.length - 1 - this.leftOut) / 2);
    this.leftOut += Math.max(more, 0);
    return more > 0;
  }

  remove(turn) {
    const index = this.turns.indexOf(turn);
    this.turns.splice(index, 1);
    if (index < this.leftOut) this.leftOut--;
  }

  /** For people to keep. */
  toMarkdown() {
    const part = (who, text) => `## ${who}\n\n${text.trim()}\n`;
    const said = this.turns.flatMap(({ prompt, answer }) => [part("You", prompt), part("Model", answer.text)]);
    return [`# ${this.title}\n`, ...(this.system ? [part("System", this.system)] : []), ...said].join("\n");
  }
}
