// What can be done to a checkpoint: try, publish, expire, download, merge, delete.

import { checkpointPath, get, post, put as send, remove } from "./api.js";
import { formValues, confirmed, shown } from "./dialogs.js";
import { failure, h, snippet, toast } from "./dom.js";
import { bytes } from "./format.js";
import { nameOf } from "./checkpoint_model.js";
import { shell } from "./snippets.js";

const DAY_S = 86_400;

/** The buttons; `refresh` is called after a change. */
export function checkpointActions(checkpoint, refresh) {
  const menu = h("select", { class: "actions", "aria-label": `Actions for ${nameOf(checkpoint)}` },
    h("option", { value: "", selected: true }, "Actions …"),
    choices(checkpoint).map(([value, label]) => h("option", { value }, label)));
  menu.addEventListener("change", async () => {
    const chosen = menu.value;
    menu.value = "";
    try {
      await ACTIONS[chosen](checkpoint, refresh);
    } catch (error) {
      toast([error.message, error.hint].filter(Boolean).join(" "), "bad");
    }
  });
  return menu;
}

function choices(checkpoint) {
  const isSampler = checkpoint.checkpoint_type === "sampler";
  return [
    isSampler ? ["play", "Open in the playground"] : null,
    ["copy", "Copy its path"],
    checkpoint.public ? ["unpublish", "Unpublish"] : ["publish", "Publish …"],
    ["ttl", "Set when it expires …"],
    ["download", "Download"],
    ["merge", "Merge or export …"],
    ["delete", "Delete …"],
  ].filter(Boolean);
}

/** The links to the merged model, or why there are none. */
async function mergedModel(tinkerPath) {
  try {
    return await get(checkpointPath(tinkerPath, "merged"));
  } catch (error) {
    if (error.status === 401) throw error;
    return { error };
  }
}

/** Has the browser save what is behind a signed link, from this server under the name it has here. */
function saveAs(url, name) {
  const { pathname, search } = new URL(url);
  h("a", { href: pathname + search, download: name, rel: "noreferrer" }).click();
  toast(`${name} is on its way.`);
}

const ACTIONS = {
  play({ tinker_path: path }) {
    location.hash = `#/playground?${new URLSearchParams({ b: path })}`;
  },

  async copy({ tinker_path: path }) {
    await navigator.clipboard.writeText(path);
    toast("The path is in the clipboard.");
  },

  async publish(checkpoint, refresh) {
    const isSure = await confirmed({
      title: "Publish this checkpoint?", action: "Publish", kind: "",
      text: ["Every key of this server, of other owners too, can then read it:", checkpoint.tinker_path],
    });
    if (!isSure) return;
    await post(checkpointPath(checkpoint.tinker_path, "publish"));
    toast(`${nameOf(checkpoint)} is public.`);
    refresh();
  },

  async unpublish(checkpoint, refresh) {
    await remove(checkpointPath(checkpoint.tinker_path, "publish"));
    toast(`${nameOf(checkpoint)} is private again.`);
    refresh();
  },

  async ttl(checkpoint, refresh) {
    const given = await formValues({
      title: "When should it expire?", action: "Set",
      fields: [
        h("p", { class: "muted break" }, checkpoint.tinker_path),
        h("label", { class: "field" }, h("span", {}, "Days from now; empty keeps it for good"),
          h("input", { name: "days", type: "number", min: "0.05", step: "any", inputmode: "decimal" })),
      ],
    });
    if (given === null) return;
    const seconds = given.days === "" ? null : Math.round(Number(given.days) * DAY_S);
    await send(checkpointPath(checkpoint.tinker_path, "ttl"), { ttl_seconds: seconds });
    toast(seconds === null ? "It is kept for good." : `It expires in ${given.days} days.`);
    refresh();
  },

  async download(checkpoint) {
    const answer = await get(checkpointPath(checkpoint.tinker_path, "archive"), { redirect: "false" });
    saveAs(answer.url, `${nameOf(checkpoint)}.tar`);
  },

  async merge(checkpoint) {
    const path = checkpoint.tinker_path;
    const found = await mergedModel(path);
    shown({
      title: "Merge or export",
      content: [
        h("h3", {}, "One model, with the checkpoint in it"),
        found.error ? failure(found.error) : [
          h("p", { class: "muted" }, "The base model’s weights with the adapter added to them, config and tokenizer: for transformers, vLLM and other programs that take no adapters. Nothing is left on the server."),
          h("p", {}, h("button", { type: "button", class: "primary", on: { click: () => saveAs(found.archive_url, `${nameOf(checkpoint)}-merged.tar`) } },
            `Download the merged model (${bytes(found.size_bytes)})`)),
          snippet(`tinkex checkpoint merge ${shell(path)}`, "command"),
        ],
        h("h3", {}, "The adapter alone"),
        h("p", { class: "muted" }, "As a PEFT folder, or on the Hugging Face Hub:"),
        snippet(`tinkex checkpoint download ${shell(path)}\ntinkex checkpoint push-hf ${shell(path)}`, "commands"),
      ],
    });
  },

  async delete(checkpoint, refresh) {
    const isSure = await confirmed({
      title: "Delete this checkpoint?", action: "Delete for good", type: nameOf(checkpoint),
      text: ["Its files are removed from the server. This cannot be undone.", checkpoint.tinker_path],
    });
    if (!isSure) return;
    await remove(checkpointPath(checkpoint.tinker_path));
    toast(`${nameOf(checkpoint)} is deleted.`);
    refresh();
  },
};
