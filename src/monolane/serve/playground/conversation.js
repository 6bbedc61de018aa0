// What was said, kept as long as the tab lives.
import { Timeline } from "./timeline.js";

const STORE = "monolane.conversation";

/**
 * Turns are { prompt, answer }. An answer is { text, phase, reason, error, timings, timeline, seed, temperature,
 * continues }; its phase is "waiting", "writing" or "over". `continues`: it goes on where the prompt ends, because the
 * model cannot chat.
 */
export class Conversation {
  constructor() {
    this.turns = [];
  }

  static restore() {
    const conversation = new Conversation();
    try {
      conversation.turns = JSON.parse(sessionStorage.getItem(STORE) ?? "[]").map(({ prompt, answer }) => ({
        prompt,
        answer: { ...answer, timeline: Timeline.from(answer.timeline) },
      }));
    } catch {
      sessionStorage.removeItem(STORE); // of another version of this page
    }
    return conversation;
  }

  save() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.turns));
    } catch {
      sessionStorage.removeItem(STORE); // larger than browsers keep: it lives on until the page is left
    }
  }

  /**
   * What to send for the last turn: all before it that went well, and its prompt; or that alone, to be continued until
   * the `context` is full.
   */
  question(context) {
    const last = this.turns.at(-1);
    if (last.answer.continues) return { prompt: last.prompt, max_tokens: context };
    const messages = [];
    for (const { prompt, answer } of this.turns.slice(0, -1)) {
      if (!answer.text || answer.continues) continue;
      messages.push({ role: "user", content: prompt }, { role: "assistant", content: answer.text });
    }
    return { messages: [...messages, { role: "user", content: last.prompt }] };
  }

  clear() {
    this.turns = [];
    sessionStorage.removeItem(STORE);
  }
}
