// The blocks of Markdown, line by line: paragraphs, headings, lists within lists, quotes, tables, rules, code.
import { copyButton } from "./copy.js";
import { element } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?(.*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

const indentOf = (line) => /^\s*/.exec(line)[0].length;

/**
 * What a node of the page holds. States are replaced and never changed, so that a line can be taken back: `leaf` is the
 * paragraph, table or code that is being written; `child` the quote or list item that the next lines may belong to.
 */
export class Blocks {
  /** `put(parent, ...nodes)` adds nodes to the page. */
  constructor(root, put) {
    Object.assign(this, { root, put, leaf: null, child: null });
  }

  keep() {
    return { leaf: this.leaf, child: this.child, within: this.child?.blocks.keep() };
  }

  back({ leaf, child, within }) {
    Object.assign(this, { leaf, child });
    child?.blocks.back(within);
  }

  get inCode() {
    return Boolean(this.leaf?.fence ?? this.child?.blocks.inCode);
  }

  line(line) {
    if (this.leaf?.fence) this.#codeLine(line);
    else if (!this.child || !this.#toChild(line)) this.#own(line);
  }

  /** Hand a line to the quote or list item that is open; false, and it is closed, where the line is not its own. */
  #toChild(line) {
    const { child } = this;
    const { blocks, at } = child;
    if (child.quote) {
      const quoted = QUOTE.exec(line);
      if (quoted) blocks.line(quoted[1]);
      else this.child = null;
      return Boolean(quoted);
    }
    const indent = indentOf(line);
    const item = ITEM.exec(line);
    if (blocks.inCode || !line.trim() || indent >= at + 2) {
      this.child = { ...child, blank: !line.trim() };
      blocks.line(line.slice(Math.min(indent, child.content)));
      return true;
    }
    if (item && indent >= at - 1 && !RULE.test(line) && tagOf(item) === child.tag) {
      this.#item(child.list, child.tag, item);
      return true;
    }
    if (!child.blank && !item && !startsBlock(line) && blocks.leaf?.paragraph) {
      blocks.line(line.trim()); // a long item, broken without indentation
      return true;
    }
    this.child = null;
    return false;
  }

  #own(line) {
    const [fence, heading, quote, item] = [FENCE, HEADING, QUOTE, ITEM].map((kind) => kind.exec(line));
    if (!line.trim()) {
      this.leaf = null;
    } else if (fence) {
      this.#code(fence[1], fence[2]);
    } else if (heading) {
      this.leaf = null;
      this.put(this.root, element(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2])));
    } else if (this.leaf?.paragraph && this.leaf.only?.includes("|") && DELIMITERS.test(line) && line.includes("-")) {
      this.#table(this.leaf, line);
    } else if (RULE.test(line)) {
      this.leaf = null;
      this.put(this.root, element("hr"));
    } else if (quote) {
      this.leaf = null;
      const node = element("blockquote");
      this.put(this.root, node);
      this.child = { quote: true, blocks: new Blocks(node, this.put) };
      this.child.blocks.line(quote[1]);
    } else if (item) {
      this.leaf = null;
      const tag = tagOf(item);
      const list = element(tag, tag === "ol" ? { start: parseInt(item[2], 10) } : {});
      this.put(this.root, list);
      this.#item(list, tag, item);
    } else if (this.leaf?.body && line.includes("|")) {
      this.put(this.leaf.body, row("td", line, this.leaf.aligned));
    } else if (this.leaf?.paragraph) {
      this.put(this.leaf.paragraph, "\n", ...inline(line.trim()));
      this.leaf = { ...this.leaf, only: null };
    } else {
      const paragraph = element("p", {}, ...inline(line.trim()));
      this.put(this.root, paragraph);
      this.leaf = { paragraph, only: line };
    }
  }

  #item(list, tag, [, before, marker, space, rest]) {
    const node = element("li");
    this.put(list, node);
    const content = before.length + marker.length + Math.min(Math.max(space.length, 1), 4);
    this.child = { list, tag, at: before.length, content, blank: false, blocks: new Blocks(node, this.put) };
    const task = /^\[([ xX])\]\s+(.*)/.exec(rest);
    const words = task ? `${task[1] === " " ? "☐" : "☑"} ${task[2]}` : rest;
    if (words) this.child.blocks.line(words);
  }

  #code(fence, language) {
    const into = element("code");
    const bar = element("div", { className: "bar" }, element("span", {}, language || "text"));
    bar.append(copyButton("Copy this code", () => into.textContent));
    this.put(this.root, element("figure", { className: "code" }, bar, element("pre", { tabIndex: 0 }, into)));
    this.leaf = { fence, language, into };
  }

  #codeLine(line) {
    const { fence, language, into } = this.leaf;
    const end = FENCE.exec(line);
    if (end?.[1].startsWith(fence) && !end[2]) this.leaf = null;
    else this.put(into, ...highlight(line, language), "\n");
  }

  /** The line before was the head of a table: that is known only now. */
  #table({ paragraph, only }, delimiters) {
    const aligned = cells(delimiters).map((cell) => (/:$/.test(cell) ? (/^:/.test(cell) ? "center" : "right") : ""));
    const body = element("tbody");
    const table = element("table", {}, element("thead", {}, row("th", only, aligned)), body);
    paragraph.replaceWith(element("div", { className: "table", tabIndex: 0 }, table));
    this.leaf = { body, aligned };
  }
}

const tagOf = ([, , marker]) => (/\d/.test(marker) ? "ol" : "ul");
const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE].some((kind) => kind.test(line));

const cells = (line) =>
  line
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

function row(tag, line, aligned) {
  const drawn = cells(line).slice(0, aligned.length); // cells beyond the head have no place
  return element("tr", {}, ...drawn.map((cell, i) => element(tag, { className: aligned[i] }, ...inline(cell))));
}
