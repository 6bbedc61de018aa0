// Something to begin with.
import { byId, element } from "./dom.js";

const SUGGESTIONS = [
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

export function showSuggestions(ask) {
  for (const [title, subtitle, prompt] of SUGGESTIONS) {
    const button = element(
      "button",
      { type: "button", title: prompt },
      element("strong", {}, title),
      element("span", {}, subtitle),
    );
    button.addEventListener("click", () => ask(prompt));
    byId("suggestions").append(element("li", {}, button));
  }
}
