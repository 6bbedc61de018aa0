// A web page, drawn while it is written. It runs in a frame with an origin of its own, under a policy of its own
// (preview.html is served with it): no network, no way to this page, which never listens to it.
import { byId, element, setText } from "./dom.js";

const ADDRESS = new URL("playground/preview.html", document.baseURI);

export class Preview {
  constructor() {
    confineFrames();
    this.source = null;
    this.hint = byId("paper").firstElementChild;
    byId("preview-reload").addEventListener("click", () => this.#restart());
    byId("preview-grow").addEventListener("click", () => this.#grow(!document.body.classList.contains("grown")));
  }

  /** Draw a page; more of the same page is added to what is there. `over`: nothing more will come. */
  show(source, over) {
    const more = this.source !== null && !this.over && source.startsWith(this.source);
    this.source = source;
    this.over = over;
    if (more) this.#feed();
    else this.#restart();
    this.#state(over ? "Complete" : "Being written");
  }

  clear() {
    this.source = null;
    this.port?.close();
    this.port = null;
    byId("paper").replaceChildren(this.hint);
    this.#grow(false);
    this.#state("");
  }

  /** Back to its place; false where it was there already. */
  shrink() {
    const grown = document.body.classList.contains("grown");
    this.#grow(false);
    return grown;
  }

  #restart() {
    this.port?.close();
    this.port = null;
    this.sent = 0;
    const frame = element("iframe", { title: "Preview of the answer", sandbox: "allow-scripts", src: ADDRESS.href });
    frame.addEventListener("load", () => this.#connect(frame), { once: true });
    byId("paper").replaceChildren(frame);
  }

  #connect(frame) {
    const { port1, port2 } = new MessageChannel();
    frame.contentWindow.postMessage(null, "*", [port2]); // its origin is opaque and has no name; only HTML follows
    this.port = port1;
    this.#feed();
  }

  #feed() {
    if (!this.port) return;
    if (this.source.length > this.sent) this.port.postMessage(this.source.slice(this.sent));
    this.sent = this.source.length;
    if (this.over) this.port.postMessage(null);
  }

  #grow(grown) {
    document.body.classList.toggle("grown", grown);
    byId("preview-grow").setAttribute("aria-pressed", String(grown));
  }

  #state(text) {
    setText(byId("preview-state"), text);
    for (const id of ["preview-reload", "preview-grow"]) byId(id).disabled = this.source === null;
  }
}

/** Frames of this page show preview.html only: one that navigates away gets nowhere, not even on this server. */
function confineFrames() {
  if (ADDRESS.hostname.startsWith("[")) return; // policies cannot name IPv6 addresses; 'self' holds, from the header
  const content = `frame-src ${ADDRESS.href}`;
  document.head.append(element("meta", { httpEquiv: "Content-Security-Policy", content }));
}
