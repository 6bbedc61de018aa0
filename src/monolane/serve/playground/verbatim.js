// A text that a model continues: prompt and continuation in one piece, every character as it is.
import { element } from "./dom.js";

export class Verbatim {
  constructor(root, prompt) {
    this.added = document.createTextNode("");
    root.append(element("p", { className: "verbatim" }, element("span", { className: "given" }, prompt), this.added));
  }

  /** Draw the whole continuation so far, of which all that was given before is the beginning. */
  update(text) {
    this.added.appendData(text.slice(this.added.length));
  }
}
