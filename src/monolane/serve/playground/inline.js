// What stands within a line: code, links, emphasis.
import { element } from "./dom.js";

const INLINE = new RegExp(
  [
    String.raw`\\([\\*_~#|\x60[\]])`, // an escaped sign
    String.raw`(\x60+)(.+?)\2(?!\x60)`, // code
    String.raw`!?\[([^\]]*)\]\(\s*<?([^\s<>]+?)>?(?:\s+"[^"]*")?\s*\)`, // a link, or an image, shown as one
    String.raw`(https?://[^\s<>"'\x60)\]]*[^\s<>"'\x60)\].,;:!?*_])`,
    String.raw`\*\*(?!\s)(.+?)\*\*(?!\*)`,
    String.raw`(?<!\w)__(?!\s)(.+?)__(?!\w)`,
    String.raw`\*([^*\s](?:[^*]*[^*\s])?)\*`,
    String.raw`(?<!\w)_([^_\s](?:[^_]*[^_\s])?)_(?!\w)`,
    String.raw`~~(?!\s)(.+?)~~`,
  ].join("|"),
  "g",
);

/** The nodes of a text. */
export function inline(text) {
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > done) nodes.push(text.slice(done, match.index));
    nodes.push(drawn(match));
    done = match.index + match[0].length;
  }
  return [...nodes, text.slice(done)];
}

function drawn([found, escaped, , code, label, address, bare, strong, strong2, soft, soft2, struck]) {
  if (escaped) return escaped;
  if (code) return element("code", {}, code.replace(/^ (.*) $/, "$1"));
  if (address) return link(address, label || address) ?? found;
  if (bare) return link(bare, bare);
  if (strong ?? strong2) return element("strong", {}, ...inline(strong ?? strong2));
  if (struck) return element("del", {}, ...inline(struck));
  return element("em", {}, ...inline(soft ?? soft2));
}

/** Addresses of the web and of mail only: others could run code. They open in another tab, and learn nothing of it. */
function link(address, label) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return null;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, label);
}
