// The choice between light, dark and the system's setting.

import { announce, h } from "./dom.js";

const NEXT = { system: "light", light: "dark", dark: "system" };
const SIGN = { system: "◐", light: "☀", dark: "☾" };

function chosen() {
  return document.documentElement.dataset.theme ?? "system";
}

/** A button that goes from one to the next. */
export function themeButton() {
  const button = h("button", { type: "button", class: "quiet" });
  const draw = () => {
    button.textContent = SIGN[chosen()];
    button.setAttribute("aria-label", `Theme: ${chosen()}. Change to ${NEXT[chosen()]}.`);
    button.title = `Theme: ${chosen()}`;
  };
  button.addEventListener("click", () => {
    const next = NEXT[chosen()];
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("tinkex.theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("tinkex.theme", next);
    }
    draw();
    announce(`Theme: ${next}`);
    window.dispatchEvent(new CustomEvent("tinkex:theme"));
  });
  draw();
  return button;
}
