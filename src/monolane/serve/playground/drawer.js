// The list of conversations: open, rename, export, delete.
import { byId, element } from "./dom.js";
import { conversations, forget, keep } from "./shelf.js";

const when = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "short" });

export class Drawer {
  /** `open(conversation)` shows one; `changed(conversation)` hears of another name, `gone(id)` that one is deleted. */
  constructor(acts) {
    this.acts = acts;
    this.dialog = byId("drawer");
    byId("conversations").addEventListener("click", () => this.show());
    byId("drawer-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  show() {
    this.#fill();
    this.dialog.showModal();
  }

  #fill() {
    const all = conversations();
    byId("drawer-list").replaceChildren(...all.map((one) => this.#entry(one)));
    byId("drawer-empty").hidden = all.length > 0;
  }

  #entry(one) {
    const open = element("button", { type: "button", className: "open" });
    open.append(element("strong", {}, one.title), element("span", {}, when.format(one.changed)));
    open.addEventListener("click", () => {
      this.dialog.close();
      this.acts.open(one);
    });
    const button = (label, act) => {
      const name = `${label} “${one.title}”`;
      const made = element("button", { type: "button", className: "chip", "aria-label": name }, label);
      made.addEventListener("click", act);
      return made;
    };
    const entry = element("li", {}, open);
    const buttons = element(
      "div",
      { className: "buttons" },
      button("Rename", () => this.#rename(one, entry)),
      button("Export", () => save(one)),
      button("Delete", () => {
        forget(one);
        this.acts.gone(one.id);
        this.#fill();
      }),
    );
    entry.append(buttons);
    return entry;
  }

  #rename(one, entry) {
    const input = element("input", { type: "text", value: one.title, maxLength: 80, "aria-label": "Name" });
    const done = () => {
      if (!input.isConnected) return; // Enter has done it already
      one.name = input.value.trim();
      keep(one);
      this.acts.changed(one);
      this.#fill();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") done();
      else if (event.key === "Escape") {
        event.preventDefault(); // the drawer stays
        this.#fill();
      }
    });
    input.addEventListener("blur", done);
    entry.replaceChildren(input);
    input.focus();
    input.select();
  }
}

/** As a file of Markdown, through the browser's own way of saving. */
function save(conversation) {
  const words = conversation.title.match(/[\p{L}\p{N}]+/gu) ?? ["conversation"];
  const name = words.join("-").slice(0, 60);
  const address = URL.createObjectURL(new Blob([conversation.toMarkdown()], { type: "text/markdown" }));
  element("a", { href: address, download: `${name}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
