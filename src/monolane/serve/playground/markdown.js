// The little Markdown that models write, drawn as it comes: lines that are complete are drawn once and never again.
import { copyButton } from "./copy.js";
import { element } from "./dom.js";
import { highlight } from "./highlight.js";

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/;
const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;

export class Markdown {
  constructor(root) {
    this.root = root;
    this.drawn = 0; // characters of lines that are complete
    this.block = null; // the paragraph, list or code block that is being written
    this.tail = null; // the nodes of the line that is not complete yet
  }

  /** Draw the whole text so far, of which all that was given before is the beginning. */
  update(text) {
    this.#dropTail();
    const end = text.lastIndexOf("\n") + 1;
    if (end > this.drawn) {
      for (const line of text.slice(this.drawn, end - 1).split("\n")) this.#line(line);
      this.drawn = end;
    }
    if (text.length > end) this.#drawTail(text.slice(end));
  }

  #line(line) {
    const { block } = this;
    const fence = FENCE.exec(line);
    if (block?.fence) {
      if (fence?.[1].startsWith(block.fence) && !fence[2]) this.block = null;
      else block.into.append(...highlight(line, block.language), "\n");
    } else if (fence) {
      this.block = this.#code(fence[1], fence[2]);
    } else if (!line.trim()) {
      this.block = null;
    } else {
      this.#prose(line);
    }
  }

  #prose(line) {
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    const item = /^\s*([-*+]|\d{1,9}[.)])\s+(.*)/.exec(line);
    if (heading) {
      this.root.append(element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])));
      this.block = null;
    } else if (item) {
      const tag = /\d/.test(item[1]) ? "ol" : "ul";
      if (this.block?.list !== tag) {
        const list = element(tag, tag === "ol" ? { start: parseInt(item[1], 10) } : {});
        this.root.append(list);
        this.block = { list: tag, node: list };
      }
      this.block.into = element("li", {}, ...inline(item[2]));
      this.block.node.append(this.block.into);
    } else if (this.block) {
      this.block.into.append("\n", ...inline(line.trim()));
    } else {
      const paragraph = element("p", {}, ...inline(line));
      this.root.append(paragraph);
      this.block = { into: paragraph };
    }
  }

  #code(fence, language) {
    const into = element("code");
    const bar = element("div", { className: "bar" }, element("span", {}, language || "text"));
    bar.append(copyButton("Copy this code", () => into.textContent));
    this.root.append(element("figure", { className: "code" }, bar, element("pre", { tabIndex: 0 }, into)));
    return { fence, language, into };
  }

  // What a line will be is known at its end; until then it is shown as what it most likely is.
  #drawTail(line) {
    const maybeFence = /^\s*(`{1,}|~{1,})[\w+#.-]*\s*$/.test(line);
    if (maybeFence) return;
    const into = this.block?.into ?? this.root;
    const fresh = /^\s*(#{1,6}|[-*+]|\d{1,9}[.)])(\s|$)/.test(line) && !this.block?.fence;
    const nodes = this.block?.fence ? highlight(line, this.block.language) : inline(line.trimStart());
    const node = fresh || into === this.root ? element("p", {}, ...nodes) : element("span", {}, ...nodes);
    if (fresh) this.root.append(node);
    else {
      if (into !== this.root && !this.block.fence) node.prepend("\n");
      into.append(node);
    }
    this.tail = node;
  }

  #dropTail() {
    this.tail?.remove();
    this.tail = null;
  }
}

function inline(text) {
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(INLINE)) {
    const [found, code, strong, soft] = match;
    nodes.push(text.slice(done, match.index));
    nodes.push(
      code
        ? element("code", {}, code)
        : strong
          ? element("strong", {}, ...inline(strong))
          : element("em", {}, ...inline(soft)),
    );
    done = match.index + found.length;
  }
  return [...nodes, text.slice(done)];
}
