// How much of the context a conversation fills, and how one sees that it is full.
import { byId, setText } from "./dom.js";
import { count } from "./format.js";

const NEARLY = 0.9; // of the context: worth a warning

/** Tokens of prompt and answer; 0 where they are not known. */
const taken = ({ promptTokens, timings, timeline }) =>
  promptTokens ? promptTokens + (timings?.generated_tokens ?? timeline.tokens) : 0;

export function showContext(answer, context) {
  const tokens = answer ? taken(answer) : 0;
  byId("context").hidden = !tokens || !context;
  if (!context) return;
  byId("context-bar").value = Math.min(tokens / context, 1);
  byId("context").toggleAttribute("data-full", tokens >= NEARLY * context);
  setText(byId("context-text"), `${count(tokens)} of ${count(context)} tokens`);
}

/** The answer never began, or ended, because there was no more room: not because of a limit on its length. */
export function isFull(answer) {
  if (answer.code === "context_length_exceeded") return true;
  return answer.reason === "length" && taken(answer) >= answer.context - 1;
}
