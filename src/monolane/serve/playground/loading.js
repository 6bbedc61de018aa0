// What is shown until there is a model.
import { byId, setText } from "./dom.js";
import { bytes } from "./format.js";

const HEADINGS = {
  loading: "Getting ready",
  restarting: "Starting again",
  stopping: "Shutting down",
  failed: "It could not start",
  unreachable: "Nobody answers",
  locked: "This server wants a key",
};

export function showLoading({ status, label, done_bytes: done, total_bytes: total, problem }) {
  byId("loading").hidden = false;
  setText(byId("loading-title"), HEADINGS[status] ?? HEADINGS.loading);
  const amount = total ? `, ${bytes(done)} of ${bytes(total)}` : "";
  setText(byId("loading-text"), problem ?? `${label ?? "The model is being loaded"}${amount}`);
  const bar = byId("loading-bar");
  bar.hidden = ["failed", "unreachable", "locked"].includes(status);
  if (total) bar.value = done / total;
  else bar.removeAttribute("value"); // it moves, and promises nothing
}
