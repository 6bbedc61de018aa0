// Finds the web page in an answer, finished or not.

const FENCED = /(?:^|\n)[ \t]*(```+)(\w*)[^\n]*\n([\s\S]*)/;
const DOCUMENT = /^\s*<(?:!doctype html|html|svg)\b/i;

/** Its source so far, or null. It only ever grows while the answer does. */
export function pageIn(answer) {
  if (DOCUMENT.test(answer)) return answer;
  for (let rest = answer; ;) {
    const block = FENCED.exec(rest);
    if (!block) return null;
    const [, fence, language, body] = block;
    const end = body.search(new RegExp(`(^|\\n)[ \\t]*${fence}[ \\t]*(\\n|$)`));
    const source = end < 0 ? withoutTheBeginningOfAFence(body) : body.slice(0, end);
    if (/^(html|svg)$/i.test(language) || (!language && DOCUMENT.test(source))) return source;
    if (end < 0) return null;
    rest = body.slice(end).replace(/^\n?[^\n]*/, ""); // on, behind the closing fence
  }
}

const withoutTheBeginningOfAFence = (body) => body.replace(/\n[ \t]*`*$/, "");
