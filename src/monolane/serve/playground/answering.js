// Getting one answer from the server, into a turn of the conversation.
import { ApiError, ask } from "./api.js";
import { msPerToken, Timeline } from "./timeline.js";

/** `before`: what had come of the same answer when the page was reloaded. */
export const freshAnswer = (settings, before = "") => ({
  ...settings,
  text: "",
  before,
  phase: "waiting",
  ahead: 0,
  promptTokens: 0,
  reason: null,
  error: null,
  code: null,
  timings: null,
  timeline: new Timeline(),
});

/** What is shown of an answer: after a reload, what had come before stays until as much has come again. */
export const wordsOf = ({ text, before }) => (text.length < before.length ? before : text);

/**
 * Fill `answer` to `question` as it comes, calling `changed` each time, until it is over. True: the server wants
 * another key.
 */
export async function fill(answer, question, signal, changed) {
  const { temperature, top_p, top_k, min_p, repetition_penalty, seed, max_tokens, model } = answer;
  const body = { temperature, top_p, top_k, min_p, repetition_penalty, seed, max_tokens, model, ...question };
  if (question.max_tokens && max_tokens) body.max_tokens = max_tokens;
  const sent = performance.now();
  try {
    for await (const piece of ask(body, signal)) {
      if (piece.ahead !== undefined) answer.ahead = piece.ahead;
      if (piece.text) {
        answer.phase = "writing";
        answer.text += piece.text;
        answer.promptTokens = piece.promptTokens;
        answer.timeline.add(sent, performance.now(), piece.tokens, answer.text.length);
      }
      if (piece.reason) {
        answer.reason = piece.reason;
        answer.timings = piece.timings;
        if (answer.timeline.msPerToken) answer.timeline.noFasterThan(msPerToken(answer));
      }
      changed();
    }
    if (!answer.reason) throw new ApiError(0, "The server went away in the middle of the answer.");
    answer.before = "";
  } catch (error) {
    answer.text = wordsOf(answer);
    if (error.name === "AbortError") answer.reason = "stopped";
    else if (error instanceof ApiError) [answer.error, answer.code] = [error.message, error.code];
    else answer.error = "The connection was lost in the middle of the answer.";
    return error.status === 401;
  } finally {
    answer.phase = "over";
  }
  return false;
}
