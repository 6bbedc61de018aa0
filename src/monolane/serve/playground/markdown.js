// The Markdown that models write, drawn as it comes: lines that are complete are drawn once and never again.
import { Blocks } from "./blocks.js";
import { element } from "./dom.js";

const OPEN = "<think>";
const CLOSE = "</think>";
// The beginning of a line that may become a fence, a list, a rule, a table's delimiters or the mark of a thought.
const UNDECIDED = /^\s*(?:[`~]+[\w+#.-]*|(?:\d{1,9}[.)]?)?[-*+_#>|:=\s]*|<\/?t?h?i?n?k?>?)\s*$/;

export class Markdown {
  constructor(root) {
    this.root = root;
    this.drawn = 0; // characters of lines that are complete
    this.added = null; // nodes of the line that is not complete yet
    this.thought = null; // the fold with what the model thinks before it answers, while it does
    this.blocks = this.#blocks(root);
  }

  /** Draw the whole text so far, of which all that was given before is the beginning. `over`: no more will come. */
  update(text, over = false) {
    this.#takeBack();
    const end = over && !text.endsWith("\n") ? text.length + 1 : text.lastIndexOf("\n") + 1;
    if (end > this.drawn) {
      for (const line of text.slice(this.drawn, end - 1).split("\n")) this.#line(line);
      this.drawn = end;
    }
    if (text.length > end) this.#preview(text.slice(end));
  }

  #line(line) {
    if (!this.root.childElementCount && line.trimStart().startsWith(OPEN)) {
      const words = element("div", { className: "words" });
      this.thought = element("details", { className: "thought" }, element("summary", {}, "Thinking"), words);
      this.root.append(this.thought);
      this.blocks = this.#blocks(words);
      line = line.trimStart().slice(OPEN.length);
    }
    const end = this.thought ? line.indexOf(CLOSE) : -1;
    this.blocks.line(end < 0 ? line : line.slice(0, end));
    if (end < 0) return;
    const [summary, words] = this.thought.children;
    summary.textContent = "Thoughts";
    this.thought.hidden = !words.textContent.trim();
    this.thought = null;
    this.blocks = this.#blocks(this.root);
    this.blocks.line(line.slice(end + CLOSE.length));
  }

  #blocks(root) {
    return new Blocks(root, (parent, ...given) => {
      const nodes = given.map((node) => (typeof node === "string" ? document.createTextNode(node) : node));
      this.added?.push(...nodes);
      parent.append(...nodes);
    });
  }

  // The line that is being written is drawn as if it ended here, and taken back when more of it has come.
  #preview(line) {
    if (!this.blocks.inCode && UNDECIDED.test(line)) return;
    if (line.includes(OPEN) || line.includes(CLOSE)) return;
    if (this.blocks.inCode && /^\s*[`~]+\s*$/.test(line)) return;
    this.kept = this.blocks.keep();
    this.added = [];
    this.blocks.line(line);
  }

  #takeBack() {
    if (!this.added) return;
    for (const node of this.added) node.remove();
    this.added = null;
    this.blocks.back(this.kept);
  }
}
