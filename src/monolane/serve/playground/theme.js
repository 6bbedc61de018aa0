// Dark, light, or as the system has it. Runs before the first paint, so that nothing flashes.
const THEMES = ["system", "light", "dark"];
const NAMES = { system: "Auto", light: "Light", dark: "Dark" };

function storedTheme() {
  const stored = localStorage.getItem("monolane.theme");
  return THEMES.includes(stored) ? stored : "system";
}

document.documentElement.dataset.theme = storedTheme();

addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const show = () => {
    const theme = storedTheme();
    document.documentElement.dataset.theme = theme;
    button.querySelector("span").textContent = NAMES[theme];
    button.setAttribute("aria-label", `Colours: ${NAMES[theme]}`);
  };
  button.addEventListener("click", () => {
    localStorage.setItem("monolane.theme", THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length]);
    show();
  });
  show();
});
