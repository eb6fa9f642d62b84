// The keys of one's own owner: those in use, a new one, and revoking.

import { get, path, post, remove } from "./api.js";
import { formValues, confirmed, shown } from "./dialogs.js";
import { failure, h, put, snippet, toast } from "./dom.js";
import { ago, when } from "./format.js";

export class KeysPanel {
  constructor(signal) {
    this.signal = signal;
    this.list = h("div", {}, h("p", { class: "muted" }, "Loading keys …"));
    this.element = h("section", { class: "panel" },
      h("div", { class: "panel-head" }, h("h2", {}, "Your keys"),
        h("button", { type: "button", on: { click: () => this.#make() } }, "New key …")),
      this.list);
    this.#read();
  }

  async #read() {
    try {
      const { owner, keys } = await get("/keys", {}, { signal: this.signal });
      this.#draw(owner, keys);
    } catch (error) {
      if (this.signal.aborted || error.status === 401) return;
      put(this.list, error.isMissingRoute
        ? h("p", { class: "muted" }, "On this server keys are made with ", h("code", {}, "tinkex keys"), ".")
        : failure(error, () => this.#read()));
    }
  }

  #draw(owner, keys) {
    put(this.list,
      h("ul", { class: "items" }, keys.map((key) => h("li", {},
        h("div", { class: "grow" },
          h("span", { class: "strong break" }, key.name), " ",
          key.is_this_key ? h("span", { class: "badge plain good" }, "this one") : null,
          h("div", { class: "muted small" }, h("span", { class: "mono" }, `tml-…${key.tail}`), " · ",
            h("span", { title: when(key.created) }, `made ${ago(key.created)}`),
            key.last_used ? ` · used ${ago(key.last_used)}` : " · never used")),
        h("button", { type: "button", class: "danger", "aria-label": `Revoke ${key.name}`, on: { click: () => this.#revoke(key, keys.length) } }, "Revoke")))),
      h("p", { class: "muted small" }, "All of them have access to the work of owner ", h("b", { class: "break" }, owner), "."));
  }

  async #make() {
    const given = await formValues({
      title: "New key", action: "Make it",
      fields: [h("label", { class: "field" }, h("span", {}, "Name"), h("input", { name: "name", required: true, maxlength: "128", value: "page" }))],
    });
    if (given === null) return;
    try {
      const made = await post("/keys", { name: given.name.trim() });
      shown({
        title: "The new key",
        content: [h("p", {}, "It is shown this once; only its hash is kept."), snippet(made.key, "key")],
      });
      this.#read();
    } catch (error) {
      toast([error.message, error.hint].filter(Boolean).join(" "), "bad");
    }
  }

  async #revoke(key, number) {
    const text = ["Programs that use it are refused at once."];
    if (key.is_this_key) text.push("It is the key you are signed in with: you are signed out.");
    if (number === 1) text.push("It is the last key of its owner. Another can then only be made on the server’s machine, with tinkex keys create.");
    const isSure = await confirmed({
      title: `Revoke “${key.name}”?`, action: "Revoke", text, type: key.is_this_key ? key.tail : null,
    });
    if (!isSure) return;
    try {
      await remove(`${path("keys", String(key.key_id))}${key.is_this_key ? "?confirm=true" : ""}`);
      toast(`${key.name} is revoked.`);
      this.#read();
    } catch (error) {
      toast([error.message, error.hint].filter(Boolean).join(" "), "bad");
    }
  }
}
