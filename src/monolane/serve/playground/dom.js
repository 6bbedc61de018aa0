// Elements, made without markup: nothing a model writes can become any.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Write to the page only what has changed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
