// The dialog for the operator's token.

import { formValues } from "./dialogs.js";
import { h } from "./dom.js";

/** The token that was typed; null if none was. */
export async function askForToken() {
  const given = await formValues({
    title: "Operator’s view", action: "Use it",
    fields: [
      h("p", { class: "muted" }, "Shows all tenants and every detail of each worker. The token is the first word of the file ",
        h("code", {}, "operator-token"), " in the server’s data folder. It stays in this tab and is forgotten when you close it."),
      h("label", { class: "field" }, h("span", {}, "Operator token"),
        h("input", { name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, class: "mono" })),
    ],
  });
  return given && /^[0-9a-f]+$/i.test(given.token.trim()) ? given.token.trim() : null;
}
