// Tokens coloured by their logprob; the alternatives of one are shown on hover and focus.

import { h, put } from "./dom.js";
import { measured } from "./format.js";

const BOUNDS = [0.9, 0.6, 0.3, 0.1, 0.02]; // probabilities between the six colours
const SPECIAL = /^<\|.*\|>$|^<\/?s>$/;
const BYTES = /^bytes:(\\x[0-9a-f]{2})+$/; // a token that is no whole character
let shownBox = null; // the one box with alternatives

/** The class of a colour for a logprob: p0 is likely, p5 is not. */
export function colourClass(logprob) {
  if (!Number.isFinite(logprob)) return "";
  const probability = Math.exp(logprob);
  const place = BOUNDS.findIndex((bound) => probability >= bound);
  return `p${place < 0 ? BOUNDS.length : place}`;
}

/** A token as text that can be seen. */
function visible(text) {
  if (BYTES.test(text)) return text.slice("bytes:".length);
  return JSON.stringify(text).slice(1, -1).replaceAll("\\\"", "\"") || "∅";
}

export class TokenText {
  constructor(label) {
    this.tokens = [];
    this.current = 0;
    this.element = h("div", { class: "tokens", role: "group", "aria-label": `${label}: arrow keys move between tokens` });
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    this.element.addEventListener("focusin", ({ target }) => this.#open(target));
    this.element.addEventListener("focusout", close);
    this.element.addEventListener("pointerover", ({ target }) => this.#open(target));
    this.element.addEventListener("pointerleave", close);
  }

  /** Appends tokens. */
  add(tokens) {
    for (const token of tokens) {
      const isFirst = this.tokens.length === 0;
      const label = Number.isFinite(token.logprob) ? `${visible(token.text)}, ${percent(token.logprob)}` : visible(token.text);
      this.element.append(h("span", { class: `token ${colourClass(token.logprob)} ${SPECIAL.test(token.text) ? "special" : ""}`, tabindex: isFirst ? "0" : "-1", "aria-label": label }, BYTES.test(token.text) ? visible(token.text) : token.text));
      this.tokens.push(token);
    }
  }

  #onKey(event) {
    const by = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
    if (event.key === "Escape") close();
    if (!by) return;
    event.preventDefault();
    const nodes = this.element.children;
    const at = [...nodes].indexOf(document.activeElement);
    const next = Math.min(nodes.length - 1, Math.max(0, at + by));
    nodes[this.current]?.setAttribute("tabindex", "-1");
    this.current = next;
    nodes[next].setAttribute("tabindex", "0");
    nodes[next].focus();
  }

  #open(target) {
    if (!target.classList.contains("token")) return;
    const token = this.tokens[[...this.element.children].indexOf(target)];
    close();
    if (!token || !Number.isFinite(token.logprob)) return;
    const others = token.top.some(({ text }) => text === token.text) ? token.top : [{ ...token }, ...token.top];
    shownBox = h("div", { class: "alternatives", role: "tooltip" },
      h("div", { class: "muted small" }, `logprob ${measured(token.logprob)}`),
      h("table", {}, h("tbody", {}, others.map((each) => h("tr", { class: each.text === token.text ? "chosen" : null },
        h("td", { class: "mono" }, visible(each.text)), h("td", { class: "right" }, percent(each.logprob)),
        h("td", {}, bar(each.logprob)))))));
    document.body.append(shownBox);
    place(shownBox, target.getClientRects()[0] ?? target.getBoundingClientRect());
  }
}

function close() {
  shownBox?.remove();
  shownBox = null;
}

function percent(logprob) {
  const probability = 100 * Math.exp(logprob);
  return probability >= 0.1 ? `${probability.toFixed(1)} %` : "< 0.1 %";
}

function bar(logprob) {
  const meter = h("i", { class: "share" });
  meter.style.setProperty("--share", Math.exp(logprob).toFixed(4)); // by the object model, which the policy allows
  return meter;
}

function place(box, at) {
  const { width, height } = box.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left), window.innerWidth - width - 8);
  const top = at.bottom + height + 8 > window.innerHeight ? at.top - height - 6 : at.bottom + 6;
  box.style.left = `${left}px`;
  box.style.top = `${Math.max(8, top)}px`;
}

/** What the colours mean. */
export function legend() {
  const labels = ["≥ 90 %", "≥ 60 %", "≥ 30 %", "≥ 10 %", "≥ 2 %", "below"];
  const element = h("div", { class: "row small muted", "aria-label": "Colours by probability" });
  put(element, "Probability:", labels.map((label, each) => h("span", { class: `token p${each}` }, label)));
  return element;
}
