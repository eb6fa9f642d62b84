// The playground: chat or completion with base models and checkpoints, one or two side by side.

import { all, get } from "./api.js";
import { nameOf, runOf } from "./checkpoint_model.js";
import { shown } from "./dialogs.js";
import { failure, h, put, snippet } from "./dom.js";
import { Pane } from "./play_pane.js";
import { Params } from "./play_params.js";
import { requestOf } from "./play_request.js";
import { runsById, shortNameOf } from "./runs_by_id.js";
import { curlRequest, pythonRequest } from "./snippets.js";
import { legend } from "./tokens.js";

const MODES = [["chat", "Chat"], ["completion", "Completion"], ["score", "Score a prompt"]];
const HINTS = {
  chat: "Write a message. Enter sends it, Shift+Enter makes a new line.",
  completion: "Write the beginning of a text. Ctrl+Enter completes it.",
  score: "Write a text to see how likely the model finds each token. Ctrl+Enter scores it.",
};

export function playgroundView(query) {
  const stopped = new AbortController();
  const { signal } = stopped;
  const params = new Params();
  const panes = [new Pane("A", signal), new Pane("B", signal)];
  const problem = h("div");
  const mode = h("div", { class: "segments", role: "radiogroup", "aria-label": "What to do" },
    MODES.map(([value, label], place) => h("label", {},
      h("input", { type: "radio", name: "mode", value, checked: place === 0, on: { change: onMode } }), h("span", {}, label))));
  const isTwo = h("input", { type: "checkbox", checked: query.has("b"), on: { change: layOut } });
  const prompt = h("textarea", { rows: "3", "aria-label": "Prompt", placeholder: HINTS.chat, on: { keydown: onKey } });
  const system = h("textarea", { rows: "2", placeholder: "You are …" });
  const systemField = h("label", { class: "field" }, h("span", {}, "System message"), system);
  const send = h("button", { type: "button", class: "primary", on: { click: () => run() } }, "Send");
  const stop = h("button", { type: "button", hidden: true, on: { click: () => panes.forEach((pane) => pane.stop()) } }, "Stop");
  const clear = h("button", { type: "button", class: "quiet", on: { click: () => panes.forEach((pane) => pane.clear()) } }, "Clear");
  const stage = h("div", { class: "stage" }, panes.map((pane) => pane.element));

  const modeNow = () => mode.querySelector("input:checked").value;
  const active = () => (isTwo.checked ? panes : panes.slice(0, 1));

  function onMode() {
    const now = modeNow();
    prompt.placeholder = HINTS[now];
    send.textContent = { chat: "Send", completion: "Complete", score: "Score" }[now];
    systemField.hidden = now !== "chat";
    params.show(now);
    panes.forEach((pane) => pane.clear());
  }

  function layOut() {
    panes[1].element.hidden = !isTwo.checked;
    stage.classList.toggle("two", isTwo.checked);
  }

  function onKey(event) {
    const isChat = modeNow() === "chat";
    if (event.key !== "Enter" || event.isComposing || event.shiftKey || (!isChat && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    run();
  }

  async function run() {
    const text = prompt.value;
    if (!text.trim() || send.disabled) return;
    const now = modeNow();
    send.disabled = true;
    await loading;
    if (panes[0].model) {
      put(problem);
      stop.hidden = false;
      if (now === "chat") prompt.value = "";
      await Promise.all(active().map((pane) => pane.run(now, { text, system: system.value, params: params.values })));
      stop.hidden = true;
    }
    send.disabled = false;
    if (!signal.aborted) prompt.focus();
  }

  function showCode() {
    const now = modeNow();
    const { isChat, body } = requestOf(now, panes[0].model, {
      turns: panes[0].turns, text: prompt.value || "…", system: system.value, params: params.values,
    });
    const example = now === "score" ? { ...body, stream: undefined } : body;
    shown({
      title: "The same from a program",
      content: [
        h("p", { class: "muted" }, "The key is read from TINKER_API_KEY."),
        h("h3", {}, "Python"), snippet(pythonRequest(location.origin, isChat, JSON.parse(JSON.stringify(example))), "program"),
        h("h3", {}, "curl"), snippet(curlRequest(location.origin, isChat, example), "command"),
      ],
    });
  }

  async function loadModels() {
    try {
      const [{ supported_models: models }, checkpoints, runs] = await Promise.all([
        get("/get_server_capabilities", {}, { signal }), all("/checkpoints", "checkpoints", { signal, most: 1000 }), runsById(signal),
      ]);
      const names = models.map((each) => each.model_name);
      const samplers = checkpoints.filter((each) => each.checkpoint_type === "sampler");
      const saved = new Map(samplers.map((each) => [each.tinker_path, `${nameOf(each)} · ${shortNameOf(runs, runOf(each))}`]));
      const baseOf = (path) => [runs.get(runOf({ tinker_path: path ?? "" }))?.base_model].find((base) => names.includes(base));
      // Side by side a checkpoint stands against the base model that it was trained on.
      const a = query.get("a") ?? baseOf(query.get("b")) ?? names[0];
      panes[0].setModels(names, saved, a);
      panes[1].setModels(names, saved, query.get("b") ?? [...saved.keys()].find((path) => baseOf(path) === a) ?? a);
    } catch (error) {
      if (!signal.aborted && error.status !== 401) put(problem, failure(error, () => { loading = loadModels(); }));
    }
  }

  params.show("chat");
  layOut();
  let loading = loadModels(); // what is sent meanwhile waits for the list
  return {
    title: "Playground",
    element: h("div", { class: "playground" },
      h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Playground")),
        h("div", { class: "row" }, mode, h("label", { class: "check" }, isTwo, "Side by side"),
          h("button", { type: "button", on: { click: showCode } }, "Copy as Python or curl …"))),
      problem,
      h("div", { class: "play-columns" },
        h("div", { class: "stack" }, stage,
          h("div", { class: "panel composer" }, prompt, h("div", { class: "row" }, send, stop, clear, h("span", { class: "grow" }), legend()))),
        h("aside", { class: "panel", "aria-label": "Sampling parameters" }, h("h2", {}, "Parameters"), systemField, params.element))),
    stop: () => stopped.abort(),
  };
}
