// Getting one answer from the server, into a turn of the conversation.
import { ApiError, ask } from "./api.js";
import { msPerToken, Timeline } from "./timeline.js";

export const freshAnswer = (settings) => ({
  ...settings,
  text: "",
  phase: "waiting",
  ahead: 0,
  reason: null,
  error: null,
  timings: null,
  timeline: new Timeline(),
});

/**
 * Fill `answer` to `question` as it comes, calling `changed` each time, until it is over. True: the server wants
 * another key.
 */
export async function fill(answer, question, signal, changed) {
  const { temperature, seed } = answer;
  const sent = performance.now();
  try {
    for await (const piece of ask({ ...question, temperature, seed }, signal)) {
      if (piece.ahead !== undefined) answer.ahead = piece.ahead;
      if (piece.text) {
        answer.phase = "writing";
        answer.text += piece.text;
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
  } catch (error) {
    if (error.name === "AbortError") answer.reason = "stopped";
    else if (error instanceof ApiError) answer.error = error.message;
    else answer.error = "The connection was lost in the middle of the answer.";
    return error.status === 401;
  } finally {
    answer.phase = "over";
  }
  return false;
}
