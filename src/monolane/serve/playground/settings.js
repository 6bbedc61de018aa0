// How the model shall answer: what it is told first, and how its words are chosen.
import { byId, setText } from "./dom.js";

const SEEDS = 1_000_000; // of those drawn here: short enough to read out
const STORE = "monolane.settings";
const FIELDS = ["temperature", "top_p", "max_tokens"];

export class Settings {
  /** `systemChanged(text)` hears of another system prompt. */
  constructor(systemChanged) {
    this.suggested = {}; // by the model's makers; of these the page sends what has no field here
    this.given = {};
    for (const name of FIELDS)
      byId(name).addEventListener("input", () => {
        this.given[name] = byId(name).value;
        this.#remember();
        this.#tell();
      });
    byId("seed").addEventListener("input", () => this.#tell());
    byId("system").addEventListener("input", () => {
      systemChanged(byId("system").value.trim());
      this.#tell();
    });
    byId("settings-reset").addEventListener("click", () => {
      this.given = {};
      this.#remember();
      this.begin(this.model, this.suggested);
    });
  }

  /** With the values that the makers of a model suggest, unless they were changed for it before. */
  begin(model, suggested) {
    this.model = model;
    this.suggested = suggested;
    try {
      const kept = JSON.parse(localStorage.getItem(STORE));
      this.given = kept?.model === model ? kept.given : {};
    } catch {
      localStorage.removeItem(STORE); // of another version of this page
    }
    for (const name of FIELDS) byId(name).value = this.given[name] ?? suggested[name] ?? "";
    this.#tell();
  }

  set system(text) {
    byId("system").value = text;
    this.#tell();
  }

  /** Where no seed is given one is drawn here, so that the answer can be had again. */
  values() {
    const temperature = Number(byId("temperature").value);
    const seed = byId("seed").value.trim();
    const most = byId("max_tokens").value.trim();
    return {
      ...(temperature > 0 ? this.suggested : {}), // 0 is greedy: the likeliest token, without a penalty
      temperature,
      top_p: Number(byId("top_p").value),
      ...(/^[1-9]\d*$/.test(most) ? { max_tokens: Number(most) } : {}),
      seed: /^\d+$/.test(seed) ? Number(seed) : Math.floor(Math.random() * SEEDS),
    };
  }

  /** All are sound; otherwise the wrong one is shown. */
  check() {
    if (byId("composer").checkValidity()) return true;
    byId("settings").open = true;
    return byId("composer").reportValidity();
  }

  #remember() {
    localStorage.setItem(STORE, JSON.stringify({ model: this.model, given: this.given }));
  }

  #tell() {
    const { temperature, top_p, max_tokens } = this.values();
    setText(byId("temperature-value"), temperature.toFixed(1));
    setText(byId("top_p-value"), top_p.toFixed(2));
    const seed = byId("seed").value.trim();
    const told = [
      temperature > 0 ? `temperature ${temperature}` : "greedy",
      ...(temperature > 0 && top_p < 1 ? [`top-p ${top_p}`] : []),
      ...(max_tokens ? [`${max_tokens} tokens at most`] : []),
      ...(seed ? [`seed ${seed}`] : []),
      ...(byId("system").value.trim() ? ["system prompt"] : []),
    ];
    setText(byId("settings-line"), told.join(" · "));
  }
}
