// What the page says before the first prompt, and something to begin with that the model can do.
import { byId, element } from "./dom.js";

const ORBIT = [
  "Orbit",
  "A page that draws itself",
  "Write one HTML file that shows planets circling a sun on a canvas, with trails. Nothing external. Only the code.",
];
const SNAKE = [
  "Snake",
  "A game in one file",
  "Write the game Snake as one HTML file with arrow keys and a score. Nothing external. Only the code.",
];
const CACHE = [
  "LRU cache",
  "Python, with tests",
  "Write an LRU cache in Python with O(1) get and put, type hints, and pytest tests for its edge cases.",
];
const RING = [
  "Ring buffer",
  "Rust, without unsafe",
  "Implement a ring buffer of fixed capacity in safe Rust, with an iterator and unit tests. Explain it briefly.",
];
const CARD = [
  "Card",
  "A page that draws itself",
  "Write one HTML file with a centred card: a name, a short text and a button, with pleasant CSS. Only the code.",
];
const PRIMES = [
  "Primes",
  "A function in Python",
  "Write a Python function that returns all primes below n. Explain it briefly.",
];
const SQL = [
  "SQL",
  "A query, explained",
  "Write an SQL query for the three customers with the highest total of orders. Explain it.",
];
const REGEX = [
  "Regex",
  "Python",
  "Write a Python function that finds all e-mail addresses in a text with a regular expression.",
];
const CAPITAL = ["Capital", "A fact", "What is the capital of France?"];
const STORY = ["Story", "A few sentences", "Write a very short story about a lighthouse."];
const MAIL = ["E-mail", "Polite and short", "Write a short, polite e-mail that asks to move a meeting to Friday."];
const LIST = ["List", "Three ideas", "List three ideas for a rainy afternoon."];
const EXPLAIN = ["Explain", "Simply", "Why is the sky blue? Explain it to a child."];
const PLAN = [
  "Plan",
  "Step by step",
  "Plan a weekend in Lisbon for two people who like walking and food. Use a table.",
];

const TO_CONTINUE = [
  ["JSON", "A function that reads it", "def read_json(path):"],
  ["Point", "A class begins", "class Point:\n    def __init__(self, x, y):"],
  ["Maximum", "From its docstring", 'def maximum(values):\n    """The largest of values."""'],
  ["Command line", "argparse and what follows", "import argparse\n\n\ndef main():\n    parser ="],
];

// By the bytes of weights that a token reads: the smallest models answer plain questions, and know little of code.
const TINY = 3e8;
const SMALL = 8e8;

function fitting({ model, can_chat: canChat, bytes_per_token: size }) {
  if (!canChat) return TO_CONTINUE;
  if (size < TINY) return [CAPITAL, LIST, STORY, MAIL];
  const coder = /cod(e|er)|starcoder|devstral/i.test(model);
  if (size < SMALL) return coder ? [CARD, PRIMES, SQL, REGEX] : [PRIMES, EXPLAIN, LIST, MAIL];
  return coder ? [ORBIT, SNAKE, CACHE, RING] : [ORBIT, CACHE, PLAN, EXPLAIN];
}

/** Say what the model is there for: an answer in a conversation, or the continuation of a text. */
export function invite(machine, send) {
  const { can_chat: canChat, bytes_per_token: size } = machine;
  byId("invitation").textContent = !canChat
    ? "This model has no chat template: it does not answer, it continues the text that you begin."
    : size < TINY
      ? "A tiny model: quick everywhere, but it knows little. Ask for something simple."
      : "Ask for code and watch it arrive. Web pages draw themselves while they are written.";
  byId("prompt").placeholder = !canChat ? "Begin a text" : size < TINY ? "Ask something" : "Ask for code";
  const suggestions = fitting(machine).map(([title, subtitle, prompt]) => {
    const button = element(
      "button",
      { type: "button", title: prompt },
      element("strong", {}, title),
      element("span", {}, subtitle),
    );
    button.addEventListener("click", () => send(prompt));
    return element("li", {}, button);
  });
  byId("suggestions").replaceChildren(...suggestions);
}
