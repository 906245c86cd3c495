// Airflow's look: its dark or light mode, and its colours where the page is shown inside of it.
// The frame is of the same origin, so that the colours of a theme of your own are followed too.

const COLOURS = {
  "--bg": "bg", "--bg-subtle": "bg-subtle", "--bg-muted": "bg-muted",
  "--bg-emphasized": "bg-emphasized", "--bg-panel": "bg-panel",
  "--fg": "fg", "--fg-muted": "fg-muted", "--border": "border", "--border-strong": "border-emphasized",
  "--brand": "brand-solid", "--brand-contrast": "brand-contrast", "--brand-fg": "brand-fg",
  "--brand-subtle": "brand-subtle", "--brand-muted": "brand-muted", "--focus": "brand-focus-ring",
};

/** Return the document of the Airflow page around this one, or null when opened by itself. */
function outer() {
  try {
    return parent === window ? null : parent.document;
  } catch {
    return null; // shown in a frame of another site
  }
}

function wanted(around) {
  if (around) return around.documentElement.classList.contains("dark");
  const set = localStorage.getItem("theme");
  if (set === "dark" || set === "light") return set === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function copyColours(around) {
  const theirs = around.defaultView.getComputedStyle(around.documentElement);
  const own = document.documentElement.style;
  for (const [name, token] of Object.entries(COLOURS)) {
    const value = theirs.getPropertyValue(`--chakra-colors-${token}`).trim();
    if (value) own.setProperty(name, value);
    else own.removeProperty(name);
  }
}

function apply() {
  const around = outer();
  document.documentElement.classList.toggle("dark", wanted(around));
  if (around) copyColours(around);
}

/** Follow Airflow's setting from now on. */
export function followTheme() {
  apply();
  const around = outer();
  if (around) {
    const watch = new MutationObserver(apply);
    watch.observe(around.documentElement, { attributes: true, attributeFilter: ["class"] });
  }
  addEventListener("storage", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
}
