// Sign in with a key. It is tried before it is kept, in this tab's session only.

import { get } from "./api.js";
import { failure, h, put } from "./dom.js";
import { session } from "./session.js";

export function signInView(refusal, onSignedIn) {
  const key = h("input", {
    type: "password", name: "key", id: "key", autocomplete: "off", spellcheck: "false",
    placeholder: "tml-…", required: true, autofocus: true, class: "mono",
  });
  const problem = h("div");
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h("form", { class: "stack", on: { submit } },
    h("label", { class: "field", for: "key" }, h("span", {}, "API key"), key),
    problem,
    button);

  async function submit(event) {
    event.preventDefault();
    const given = key.value.trim();
    if (!given) return;
    button.disabled = true;
    try {
      // Header values are bytes: anything else cannot be a key.
      if (!/^[\x21-\x7e]+$/.test(given)) throw new Error("A key has no spaces or special characters.");
      await get("/auth/apikey/me", {}, { headers: { "X-Api-Key": given } });
      session.signIn(given);
      onSignedIn();
    } catch (error) {
      put(problem, failure(error));
      key.select();
    } finally {
      button.disabled = false;
    }
  }

  if (refusal) put(problem, failure(refusal));
  return {
    title: "Sign in",
    element: h("div", { class: "sign-in" },
      h("div", { class: "panel" },
        h("div", { class: "brand" }, h("img", { src: "/page/icon.svg", alt: "" }), "Tinkex"),
        h("h1", {}, "Sign in"),
        h("p", { class: "muted" }, "With an API key of this server. It stays in this tab and is forgotten when you close it."),
        form),
      h("p", { class: "muted small" }, "No key? On the server’s machine: ", h("code", {}, "tinkex keys create"))),
  };
}
