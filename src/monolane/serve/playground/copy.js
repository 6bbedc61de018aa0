// To the clipboard. Browsers offer theirs to https and to this machine only; elsewhere the old way still works.

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `text()` gives at that moment. */
export function copyButton(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "chip";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1200);
  });
  return button;
}
