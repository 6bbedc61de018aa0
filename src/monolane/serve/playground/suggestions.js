// What the page says before the first prompt, and something to begin with.
import { byId, element } from "./dom.js";

const TO_CHAT = [
  [
    "Orbit",
    "A page that draws itself",
    "Write one HTML file that shows planets circling a sun on a canvas, with trails. Nothing external. Only the code.",
  ],
  [
    "Snake",
    "A game in one file",
    "Write the game Snake as one HTML file with arrow keys and a score. Nothing external. Only the code.",
  ],
  [
    "LRU cache",
    "Python, with tests",
    "Write an LRU cache in Python with O(1) get and put, type hints, and pytest tests for its edge cases.",
  ],
  [
    "Ring buffer",
    "Rust, without unsafe",
    "Implement a ring buffer of fixed capacity in safe Rust, with an iterator and unit tests. Explain it briefly.",
  ],
];

const TO_CONTINUE = [
  ["JSON", "A function that reads it", "def read_json(path):"],
  ["Point", "A class begins", "class Point:\n    def __init__(self, x, y):"],
  ["Maximum", "From its docstring", 'def maximum(values):\n    """The largest of values."""'],
  ["Command line", "argparse and what follows", "import argparse\n\n\ndef main():\n    parser ="],
];

/** Say what the model is there for: an answer in a conversation, or the continuation of a text. */
export function invite(canChat, send) {
  byId("invitation").textContent = canChat
    ? "Ask for code and watch it arrive. Web pages draw themselves while they are written."
    : "This model has no chat template: it does not answer, it continues the text that you begin.";
  byId("prompt").placeholder = canChat ? "Ask for code" : "Begin a text";
  const suggestions = (canChat ? TO_CHAT : TO_CONTINUE).map(([title, subtitle, prompt]) => {
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
