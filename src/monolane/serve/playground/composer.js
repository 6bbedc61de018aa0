// The prompt box.
import { byId } from "./dom.js";

export class Composer {
  /** `send(prompt)` and `stop()` do what they say; `check()` is false where the settings are wrong. */
  constructor(send, stop, check) {
    const box = byId("prompt");
    this.blocked = false;
    const submit = () => {
      const prompt = box.value.trim();
      if (prompt && !this.blocked && check()) send(prompt);
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
    box.addEventListener("input", () => fit(box));
    addEventListener("resize", () => fit(box));
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
    fit(byId("prompt"));
  }

  focus() {
    byId("prompt").focus();
  }
}

/** As high as its text, up to the style sheet's max-height. */
export function fit(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}
