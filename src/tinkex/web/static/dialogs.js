// Questions in a modal dialog: the browser keeps the focus in it and gives it back.

import { h } from "./dom.js";

/** Whether it was confirmed. With `type` the text must be typed first. */
export function confirmed({ title, text, action, type = null, kind = "danger" }) {
  return new Promise((resolve) => {
    const button = h("button", { type: "submit", class: `primary ${kind}`, value: "yes" }, action);
    const typed = type && h("input", { autocomplete: "off", spellcheck: "false", class: "mono" });
    if (typed) {
      button.disabled = true;
      typed.addEventListener("input", () => { button.disabled = typed.value.trim() !== type; });
    }
    const dialog = box(title, [
      ...[text].flat().map((line) => h("p", { class: "break" }, line)),
      typed && h("label", { class: "field" }, h("span", {}, "To confirm, type ", h("code", { class: "break" }, type)), typed),
    ], button);
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    show(dialog);
  });
}

/** The value of a form's fields by name, or null if it was cancelled. */
export function formValues({ title, fields, action }) {
  return new Promise((resolve) => {
    const button = h("button", { type: "submit", class: "primary", value: "yes" }, action);
    const dialog = box(title, fields, button);
    dialog.addEventListener("close", () => {
      const form = dialog.querySelector("form");
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null);
      dialog.remove();
    });
    show(dialog);
  });
}

/** Shows something until it is closed. */
export function shown({ title, content }) {
  const dialog = box(title, content, null);
  dialog.addEventListener("close", () => dialog.remove());
  show(dialog);
}

function box(title, content, button) {
  const id = `dialog-${Math.random().toString(36).slice(2)}`;
  const leave = h("button", { type: "button" }, button ? "Cancel" : "Close");
  const dialog = h("dialog", { "aria-labelledby": id },
    h("form", { method: "dialog" },
      h("h2", { id }, title), h("div", { class: "stack" }, content),
      h("div", { class: "actions" }, leave, button)));
  leave.addEventListener("click", () => dialog.close("no"));
  return dialog;
}

function show(dialog) {
  document.body.append(dialog);
  dialog.showModal();
}
