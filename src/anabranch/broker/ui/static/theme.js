// Light or dark: as the system says, until the person says otherwise.

const KEY = "anabranch-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
export const still = matchMedia("(prefers-reduced-motion: reduce)");

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // Storage can be forbidden; the system's choice is good enough.
  }
}

let chosen = stored();

export const theme = () => chosen ?? (system.matches ? "dark" : "light");

function apply() {
  document.documentElement.dataset.theme = theme();
  for (const listener of listeners) listener(theme());
}

export function toggle() {
  chosen = theme() === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // It holds for this visit.
  }
  apply();
}

export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

system.addEventListener("change", apply);
apply();
