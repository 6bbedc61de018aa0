// The prompt box, and how the model shall answer.
import { byId } from "./dom.js";

const SEEDS = 1_000_000; // of those drawn here: short enough to read out

export class Composer {
  /** `send(prompt)` and `stop()` do what they say. */
  constructor(send, stop) {
    const [box, temperature] = [byId("prompt"), byId("temperature")];
    this.blocked = false;
    const submit = () => {
      const prompt = box.value.trim();
      if (prompt && !this.blocked && byId("composer").reportValidity()) send(prompt);
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    byId("stop").addEventListener("click", stop);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    });
    box.addEventListener("input", () => this.#fit());
    const told = () => (byId("temperature-value").textContent = Number(temperature.value).toFixed(1));
    temperature.addEventListener("input", told);
    told();
    addEventListener("resize", () => this.#fit());
  }

  /** The seed as given; where none is, one is drawn here, so that the answer can be had again. */
  settings() {
    const given = byId("seed").value.trim();
    const seed = /^\d+$/.test(given) ? Number(given) : Math.floor(Math.random() * SEEDS);
    return { temperature: Number(byId("temperature").value), seed };
  }

  /** While an answer comes there is a stop button, and no sending. */
  busy(busy) {
    const swapped = document.activeElement === byId(busy ? "send" : "stop");
    document.body.toggleAttribute("data-busy", busy);
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    if (swapped) byId(busy ? "stop" : "prompt").focus();
  }

  block(blocked) {
    this.blocked = blocked;
    byId("send").disabled = blocked;
  }

  clear() {
    byId("prompt").value = "";
    this.#fit();
  }

  focus() {
    byId("prompt").focus();
  }

  #fit() {
    const box = byId("prompt");
    box.style.height = "auto";
    box.style.height = `${box.scrollHeight}px`; // up to the style sheet's max-height
  }
}
