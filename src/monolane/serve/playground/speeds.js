// Greedy and sampled side by side: how fast the last whole answer of either kind came, kept as long as the tab lives.
import { byId, setText } from "./dom.js";
import { figure } from "./format.js";

const STORE = "monolane.speeds";

/** "greedy", or "temperature 0.7": a speed is that of answers which were sampled so. */
export const sampledHow = ({ temperature }) => (temperature > 0 ? `temperature ${temperature}` : "greedy");

export class Speeds {
  /** Of this model; those of another are forgotten. */
  begin(model) {
    this.kept = { model };
    try {
      const kept = JSON.parse(sessionStorage.getItem(STORE));
      if (kept?.model === model) this.kept = kept;
    } catch {
      sessionStorage.removeItem(STORE); // of another version of this page
    }
    this.#show();
  }

  /** By the engine's own clock alone: an answer that was stopped has none. */
  add({ temperature, timings }) {
    if (!this.kept || !timings?.decode_us_per_token) return;
    const tokensPerSecond = 1e6 / timings.decode_us_per_token;
    this.kept[temperature > 0 ? "sampled" : "greedy"] = { temperature, tokensPerSecond };
    this.#show();
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.kept));
    } catch {
      // the conversation fills what browsers keep: they live on until the page is left
    }
  }

  #show() {
    const { greedy, sampled } = this.kept;
    const speed = (found) => (found ? `${figure(found.tokensPerSecond)} tok/s` : "–");
    setText(byId("greedy"), speed(greedy));
    setText(byId("sampled"), speed(sampled));
    setText(byId("sampled-how"), sampled ? sampledHow(sampled) : "sampled");
    byId("kinds").toggleAttribute("data-idle", !greedy && !sampled);
  }
}
