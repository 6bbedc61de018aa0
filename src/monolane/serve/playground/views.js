// Which panel is in front: on a wide screen the answer stays beside it, on a phone there is room for one.
import { byId } from "./dom.js";

export const isNarrow = () => matchMedia("(max-width: 899px)").matches;

const tabs = () => [...document.querySelectorAll("[role=tab]")].filter((tab) => tab.offsetParent !== null);

export function show(view) {
  document.body.dataset.view = view;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.dataset.view === view;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) delete tab.dataset.news;
  }
}

/** Mark a panel that is not in front: there is something in it. */
export function hint(view) {
  if (document.body.dataset.view !== view) byId(`tab-${view}`).dataset.news = "";
}

export function watchTabs() {
  const settle = () => {
    if (!isNarrow() && document.body.dataset.view === "answer") show("race"); // the answer has no tab there
  };
  matchMedia("(max-width: 899px)").addEventListener("change", settle);
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => show(tab.dataset.view));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (!step) return;
      const all = tabs();
      const next = all[(all.indexOf(tab) + step + all.length) % all.length];
      show(next.dataset.view);
      next.focus();
    });
  }
  show("answer");
  settle();
}
