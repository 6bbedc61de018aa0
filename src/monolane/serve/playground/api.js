// The server's routes. Addresses are relative, so that the page also works below a path of a reverse proxy.
import { events } from "./events.js";

const KEY = "monolane.key";

export const setKey = (key) => sessionStorage.setItem(KEY, key);
export const hasKey = () => sessionStorage.getItem(KEY) !== null;

/** What the server said instead of an answer; `status` 0: nothing at all. */
export class ApiError extends Error {
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key === null ? {} : { Authorization: `Bearer ${key}` }) };
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. Is it still running?");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(response.status, message, body?.error?.code);
}

/** { ready, status, label, done_bytes, total_bytes, problem }: the step of loading under way, or what went wrong. */
export async function health() {
  const response = await request("health");
  const body = await response.json().catch(() => ({}));
  return { ...body, ready: response.ok };
}

async function get(path) {
  const response = await request(path);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** { model, device, bytes_per_token, ceiling_bytes_per_s, context, can_chat, sampling }, of one of its models. */
export const machine = (model) => get(model ? `machine?model=${encodeURIComponent(model)}` : "machine");

/** The names of the models that the server has, each once: further names of a model have another `root`. */
export const models = async () =>
  (await get("v1/models")).data.filter(({ id, root }) => (root ?? id) === id).map(({ id }) => id);

/**
 * Have a conversation answered (`messages` in the body) or a text continued (`prompt`), and yield what comes: { ahead }
 * while others are answered first, { text, tokens, promptTokens } for each piece (`tokens` counts from the beginning of
 * the answer), { reason, timings } when it is complete.
 */
export async function* ask(body, signal) {
  const stream_options = { include_usage: true, continuous_usage_stats: true };
  const response = await request(body.messages ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  let isThinking = false; // thoughts come in a field of their own from some models, and in the text from others
  for await (const { data, comment } of events(response.body)) {
    const queued = /^queue (\d+)$/.exec(comment ?? "");
    if (queued) yield { ahead: Number(queued[1]) };
    if (data === undefined || data === "[DONE]") continue;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(response.status, chunk.error.message, chunk.error.code);
    const choice = chunk.choices[0];
    const said = choice?.delta ? choice.delta.content : choice?.text;
    const thought = choice?.delta?.reasoning_content;
    const mark = thought && !isThinking ? "<think>" : said && isThinking ? "</think>\n\n" : "";
    isThinking = Boolean(thought || (isThinking && !said));
    const text = mark + (thought || said || "");
    if (text) yield { text, tokens: chunk.usage.completion_tokens, promptTokens: chunk.usage.prompt_tokens };
    if (choice?.finish_reason) yield { reason: choice.finish_reason, timings: chunk.timings };
  }
}
