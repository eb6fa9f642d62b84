// The sampling parameters: fields, and what of them goes into a request.

import { h } from "./dom.js";

const FIELDS = [
  { name: "max_tokens", label: "Maximum tokens", value: "128", min: "1", step: "1", modes: "chat completion" },
  { name: "temperature", label: "Temperature", value: "0.7", min: "0", max: "2", step: "0.05", modes: "chat completion" },
  { name: "top_p", label: "Top p", value: "1", min: "0.01", max: "1", step: "0.01", modes: "chat completion" },
  { name: "seed", label: "Seed", value: "", step: "1", hint: "random", modes: "chat completion" },
  { name: "presence_penalty", label: "Presence penalty", value: "0", min: "-2", max: "2", step: "0.1", modes: "chat completion" },
  { name: "frequency_penalty", label: "Frequency penalty", value: "0", min: "-2", max: "2", step: "0.1", modes: "chat completion" },
  { name: "alternatives", label: "Alternatives shown", value: "5", min: "1", max: "20", step: "1", modes: "chat completion score" },
];
const LEFT_OUT = { presence_penalty: 0, frequency_penalty: 0, top_p: 1 };

export class Params {
  constructor() {
    this.inputs = new Map();
    this.rows = FIELDS.map((field) => {
      const { name, label, value, hint, modes, ...limits } = field;
      const input = h("input", { type: "number", name, value, placeholder: hint ?? null, inputmode: "decimal", ...limits });
      this.inputs.set(name, input);
      return { modes: modes.split(" "), element: h("label", { class: "field" }, h("span", {}, label), input) };
    });
    this.stopTexts = h("input", { placeholder: "none", "aria-describedby": "stop-hint" });
    this.rows.push({
      modes: ["chat", "completion"],
      element: h("label", { class: "field" }, h("span", { id: "stop-hint" }, "Stop texts, with | between"), this.stopTexts),
    });
    this.element = h("div", { class: "params" }, this.rows.map(({ element }) => element));
  }

  /** Shows the fields of a mode. */
  show(mode) {
    for (const { modes, element } of this.rows) element.hidden = !modes.includes(mode);
  }

  /** What goes into a request; what is at its default is left out. */
  get values() {
    const found = {};
    for (const [name, input] of this.inputs) {
      if (input.value === "" || !input.checkValidity()) continue;
      const value = Number(input.value);
      if (LEFT_OUT[name] !== value) found[name] = value;
    }
    const stops = this.stopTexts.value.split("|").filter(Boolean);
    if (stops.length) found.stop = stops;
    return found;
  }
}
