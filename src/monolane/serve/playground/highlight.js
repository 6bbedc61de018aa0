// Colours for code, a line at a time: enough to read by, far from a parser.

const HASH = new Set([
  "python",
  "py",
  "bash",
  "sh",
  "shell",
  "yaml",
  "yml",
  "toml",
  "ruby",
  "rb",
  "make",
  "dockerfile",
]);
const MARKUP = new Set(["html", "xml", "svg", "vue"]);
const PLAIN = new Set(["", "text", "txt", "plain", "markdown", "md", "output", "console", "csv", "diff"]);

const WORDS = new Set(
  `
  abstract and as assert async await break case catch class const continue def default defer del do elif else
  enum except export extends false finally fn for from func function go if impl import in interface is lambda
  let loop match mod mut new nil none not null or package pass pub raise return self static struct super
  switch this throw trait true try type typeof undefined union unsafe use var void where while with yield int
  float double char bool string long short unsigned signed auto template typename namespace using public
  private protected virtual final select insert update delete join on group by order create table values into
  set then fi done echo
  `
    .trim()
    .split(/\s+/),
);

const STRING = /("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|`(?:[^`\\]|\\.)*`?)/;
const NUMBER = /(\b\d[\w.]*)/;
const WORD = /([A-Za-z_]\w*)/;
const CODE = {
  hash: new RegExp(`(#.*)|${STRING.source}|${NUMBER.source}|${WORD.source}`, "g"),
  slashes: new RegExp(`(//.*|/\\*.*?(?:\\*/|$)|^\\s*\\*.*)|${STRING.source}|${NUMBER.source}|${WORD.source}`, "g"),
  dashes: new RegExp(`(--.*)|${STRING.source}|${NUMBER.source}|${WORD.source}`, "g"),
};
const TAGS = /(<!--.*?(?:-->|$))|("[^"]*"|'[^']*')|(&\w+;)|(<\/?[A-Za-z][\w-]*|\/?>)/g;

/** The nodes of one line: text, and spans of class "c" (comment), "s" (string), "n" (number), "k" (keyword, tag). */
export function highlight(line, language) {
  const known = language.toLowerCase();
  if (PLAIN.has(known)) return [line];
  if (MARKUP.has(known) && line.includes("<")) return paint(line, TAGS, () => true);
  const rule = HASH.has(known) ? CODE.hash : known === "sql" || known === "lua" ? CODE.dashes : CODE.slashes;
  return paint(line, rule, (word) => WORDS.has(word) || WORDS.has(word.toLowerCase()));
}

function paint(line, rule, isKeyword) {
  const nodes = [];
  let done = 0;
  for (const match of line.matchAll(rule)) {
    const [found, comment, string, number] = match;
    const kind = comment ? "c" : string ? "s" : number ? "n" : isKeyword(found) ? "k" : null;
    if (kind === null) continue;
    if (match.index > done) nodes.push(line.slice(done, match.index));
    const span = document.createElement("span");
    span.className = kind;
    span.textContent = found;
    nodes.push(span);
    done = match.index + found.length;
  }
  nodes.push(line.slice(done));
  return nodes;
}
