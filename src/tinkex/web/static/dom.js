// Elements from plain values. Text always goes in as text: there is no innerHTML on this page, and
// the Content-Security-Policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes, `on` for listeners, `class`; null and false leave one out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same, of SVG. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "value") {
      element.value = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

/** Appends nodes, texts and lists of them. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replaces what is in an element. */
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, ...children);
}

/** Says something to screen readers without moving the focus. */
export function announce(text) {
  const announcer = document.getElementById("announcer");
  announcer.textContent = "";
  requestAnimationFrame(() => { announcer.textContent = text; });
}

/** A short message in the corner. */
export function toast(text, kind = "good") {
  const element = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), kind === "bad" ? 10_000 : 5_000);
}

/** What went wrong and what to do, as a box; `retry` puts a button below. */
export function failure(error, retry = null) {
  return h("div", { class: "notice bad", role: "alert" },
    h("p", { class: "what" }, error.message),
    error.hint ? h("p", { class: "small" }, error.hint) : null,
    retry ? h("p", {}, h("button", { type: "button", on: { click: retry } }, "Try again")) : null);
}

/** Lines to copy, with a button. */
export function snippet(text, label = "lines") {
  const button = h("button", { type: "button", "aria-label": `Copy the ${label}` }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  return h("div", { class: "snippet" }, h("pre", { tabindex: "0" }, h("code", {}, text)), button);
}

/** Copies a text and says so on the button. */
export async function copy(text, button) {
  const before = button.textContent;
  button.textContent = (await toClipboard(text)) ? "Copied" : "Copy failed";
  announce(button.textContent);
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Plain HTTP from another machine has no clipboard API.
    const area = h("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Runs `work` at most once in `everyMs`, the last call never being lost. */
export function throttled(everyMs, work) {
  let timer = null;
  let last = 0;
  return () => {
    if (timer !== null) return;
    timer = setTimeout(() => {
      timer = null;
      last = performance.now();
      work();
    }, Math.max(0, last + everyMs - performance.now()));
  };
}
