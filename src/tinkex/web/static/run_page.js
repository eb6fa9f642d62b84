// One run: its status, curves, operations as they run, and how to continue it.

import { get, patch, path } from "./api.js";
import { CheckpointList } from "./checkpoint_list.js";
import { Curves } from "./curves.js";
import { formValues } from "./dialogs.js";
import { announce, failure, h, put, snippet, throttled, toast } from "./dom.js";
import { ago, compact, count, measured, when } from "./format.js";
import { LiveFeed, stateLabel } from "./live.js";
import { Operations } from "./operations.js";
import { lossOf, nameOf, stateOf, stepsOf, tagsIn, tagsOf, tokensOf } from "./run_model.js";
import { resumeLines } from "./snippets.js";
import { statusBadge } from "./status_badge.js";
import { RunUsage } from "./usage.js";

const POLL_MS = 4_000;

export function runView(runId, query) {
  const stopped = new AbortController();
  const { signal } = stopped;
  const element = h("div", {}, h("p", { class: "loading" }, "Loading the run …"));
  const parts = { title: runId };
  let feed = null;
  let timer = null;

  async function begin() {
    try {
      const run = await get(path("training_runs", runId), {}, { signal });
      if (!signal.aborted) build(run);
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      put(element, h("p", {}, h("a", { href: "#/runs" }, "← All runs")), failure(error, error.status === 404 ? null : begin));
    }
  }

  function build(first) {
    let run = first;
    const head = h("div");
    const stats = h("div", { class: "stats" });
    const facts = h("div");
    const resume = h("div");
    const badge = h("span", { class: "badge", hidden: true });
    const operations = new Operations();
    const usage = new RunUsage(runId, signal);
    const others = (query.get("with") ?? "").split(",").filter(Boolean);
    const curves = new Curves(run, others, (ids) => {
      const asked_ = ids.length ? `?${new URLSearchParams({ with: ids.join(",") })}` : "";
      history.replaceState(null, "", `#/runs/${encodeURIComponent(runId)}${asked_}`);
      restart();
    });
    const checkpoints = new CheckpointList({
      load: async () => (await get(path("training_runs", runId, "checkpoints"), {}, { signal })).checkpoints,
      caption: "Checkpoints of this run", ofOneRun: true,
    });

    function draw() {
      document.title = `${nameOf(run)} · Tinkex`;
      drawHead(head, run, badge, edit);
      drawStats(stats, run);
      drawFacts(facts, run);
      drawResume(resume, run, checkpoints.items);
    }

    async function reread() {
      try {
        run = await get(path("training_runs", runId), {}, { signal });
        draw();
      } catch (error) {
        if (!signal.aborted) announce(error.message);
      }
    }

    async function edit() {
      const given = await formValues({
        title: "Name and tags", action: "Save",
        fields: [
          h("label", { class: "field" }, h("span", {}, "Name"), h("input", { name: "name", value: run.name ?? "", maxlength: "200" })),
          h("label", { class: "field" }, h("span", {}, "Tags, such as team=math, baseline"), h("input", { name: "tags", value: tagsOf(run).join(", ") })),
        ],
      });
      if (given === null) return;
      try {
        await patch(path("training_runs", runId), { name: given.name.trim(), tags: tagsIn(given.tags) });
        await reread();
        toast("Saved.");
      } catch (error) {
        toast(error.isMissingRoute ? "This server keeps no names of runs." : error.message, "bad");
      }
    }

    const readPoints = throttled(250, () => { if (!signal.aborted) curves.read(); });
    const drawSoon = throttled(250, () => { if (!signal.aborted) draw(); });
    let isLive = false;

    function restart() {
      feed?.stop();
      feed = new LiveFeed({
        runs: curves.runIds,
        onEvent(name, value) {
          if (name === "point") readPoints();
          if (name === "operation" && value.run === runId) {
            operations.add(value);
            if (value.state === "done" && value.kind.startsWith("save")) checkpoints.refresh();
            if (value.state === "done") usage.refresh();
          }
          if (name === "run" && value.training_run_id === runId) {
            run = value;
            drawSoon();
          }
        },
        onState(state) {
          isLive = state === "live";
          const [kind, label] = stateLabel(state);
          badge.className = `badge ${kind}`;
          badge.textContent = label;
          badge.hidden = false;
        },
        onOpen: readPoints,
        onGap() {
          curves.reset();
          reread();
          checkpoints.refresh();
          usage.refresh();
        },
      }).start();
    }

    checkpoints.onChange = () => drawResume(resume, run, checkpoints.items);
    put(element,
      h("p", { class: "crumbs" }, h("a", { href: "#/runs" }, "← All runs")),
      head, stats, curves.element,
      h("div", { class: "columns" },
        h("div", { class: "stack" },
          h("section", { class: "panel" }, h("h2", {}, "Checkpoints"), checkpoints.element),
          h("section", { class: "panel" }, h("h2", {}, "Continue training"), resume)),
        h("div", { class: "stack" },
          h("section", { class: "panel" }, h("h2", {}, "Hyperparameters"), facts),
          h("section", { class: "panel" }, h("h2", {}, "Usage"), usage.element),
          h("section", { class: "panel" }, h("h2", {}, "Operations"), operations.element))));
    draw();
    checkpoints.refresh();
    restart();
    timer = setInterval(() => {
      if (isLive) return;
      curves.read();
      reread();
    }, POLL_MS);
    parts.curves = curves;
  }

  begin();
  return {
    get title() { return parts.title; },
    element,
    stop() {
      stopped.abort();
      feed?.stop();
      parts.curves?.stop();
      clearInterval(timer);
    },
  };
}

function drawHead(head, run, badge, edit) {
  const focused = head.contains(document.activeElement);
  put(head, h("div", { class: "page-head" },
    h("div", {},
      h("h1", { class: "break" }, nameOf(run)),
      h("p", { class: "row muted small" }, statusBadge(run), stateOf(run).reason ? h("span", {}, stateOf(run).reason) : null,
        tagsOf(run).map((tag) => h("span", { class: "tag", title: tag }, tag)),
        nameOf(run) === run.training_run_id ? null : h("span", { class: "mono break" }, run.training_run_id))),
    h("div", { class: "row" }, badge, h("button", { type: "button", on: { click: edit } }, "Name and tags"))));
  if (focused) head.querySelector("button").focus({ preventScroll: true });
}

function drawStats(stats, run) {
  const latest = run.latest ?? {};
  const items = [
    ["Loss per token", measured(latest.loss_per_token ?? lossOf(run))],
    ["Steps", count(stepsOf(run) ?? NaN)],
    ["Tokens trained", compact(tokensOf(run) ?? NaN)],
    ["Learning rate", measured(latest.learning_rate)],
    ["Gradient norm", measured(latest.grad_norm)],
    ["Last used", ago(run.last_request_time)],
  ];
  put(stats, items.map(([name, value]) => h("div", { class: "stat" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value))));
}

function drawFacts(facts, run) {
  const { lora } = run;
  const trained = lora && [["attention", lora.train_attn], ["MLP", lora.train_mlp], ["unembedding", lora.train_unembed]]
    .filter(([, isTrained]) => isTrained !== false).map(([name]) => name).join(", ");
  const shownAbove = new Set(["name", "tags", ...Object.keys(run.tags ?? {})]);
  const rows = [
    ["Base model", h("a", { href: `#/playground?${new URLSearchParams({ a: run.base_model })}`, class: "break" }, run.base_model)],
    ["LoRA rank", run.lora_rank],
    lora ? ["LoRA alpha", lora.alpha] : null,
    lora ? ["Trains", trained] : null,
    lora ? ["Seed", lora.seed] : null,
    run.resumed_from ? ["Resumed from", h("a", { href: `#/runs/${encodeURIComponent(run.resumed_from)}`, class: "mono small break" }, run.resumed_from)] : null,
    ["Owner", run.model_owner],
    ["Last request", when(run.last_request_time)],
    ...Object.entries(run.user_metadata ?? {}).filter(([name]) => !shownAbove.has(name)),
  ];
  put(facts, h("dl", { class: "facts" }, rows.filter(Boolean).map(([name, value]) => [
    h("dt", {}, name), h("dd", {}, value instanceof Node ? value : typeof value === "object" ? JSON.stringify(value) : String(value ?? "–"))])));
}

function drawResume(resume, run, checkpoints) {
  const weights = checkpoints.filter(({ checkpoint_type: type }) => type === "training");
  const newest = weights.toSorted((a, b) => Date.parse(b.time) - Date.parse(a.time))[0];
  const seal = newest?.tinker_path ?? "";
  if (resume.dataset.seal === seal) return;
  resume.dataset.seal = seal;
  if (!newest) {
    put(resume, h("p", { class: "muted" }, "Save the training state first, then continue from it:"),
      snippet('training.save_state("name").result()', "line"));
    return;
  }
  const { python, cli } = resumeLines(newest.tinker_path, location.origin);
  put(resume,
    h("p", { class: "muted small" }, "From the newest saved state, with the optimizer:"), snippet(python, "Python lines"),
    h("p", { class: "muted small" }, "From the command line:"), snippet(cli, "command"));
}
