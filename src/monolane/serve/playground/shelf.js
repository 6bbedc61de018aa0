// Where conversations are kept: this browser, and nowhere else. Each has a place of its own, so that two tabs do not
// overwrite each other's.
import { Conversation } from "./conversation.js";

const PLACE = "monolane.conversation.";
const CURRENT = "monolane.current"; // of this tab
const SYSTEM = "monolane.system"; // of this tab, for a conversation that has not begun

const found = (key) => {
  try {
    return Conversation.from(JSON.parse(localStorage.getItem(key)));
  } catch {
    localStorage.removeItem(key); // of another version of this page
    return null;
  }
};

/** The conversation of this tab, as it was before a reload; or a new one. */
export function current() {
  const id = sessionStorage.getItem(CURRENT);
  const kept = id !== null && localStorage.getItem(PLACE + id) !== null;
  return (kept && found(PLACE + id)) || new Conversation({ system: sessionStorage.getItem(SYSTEM) ?? "" });
}

/** This is the conversation of this tab from now on. */
export function choose({ id }) {
  sessionStorage.setItem(CURRENT, id);
}

/** All of them, the latest first. */
export function conversations() {
  const keys = Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i));
  const all = keys.filter((key) => key.startsWith(PLACE)).map(found);
  return all.filter(Boolean).sort((one, other) => other.changed - one.changed);
}

/** False where the browser has no more room: it lives on until the page is left. */
export function keep(conversation) {
  if (!conversation.turns.length) {
    sessionStorage.setItem(SYSTEM, conversation.system);
    return true;
  }
  try {
    localStorage.setItem(PLACE + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function forget({ id }) {
  localStorage.removeItem(PLACE + id);
}
