// All runs: a table that filters, sorts and pages, with sparklines, kept current by the live feed.

import { all } from "./api.js";
import { announce, failure, h, put, snippet, throttled } from "./dom.js";
import { ago, compact, count, counted, measured, when } from "./format.js";
import { LiveFeed, stateLabel } from "./live.js";
import { fits, lossOf, nameOf, runLink, sparkOf, stateOf, stepsOf, tagsOf, tokensOf } from "./run_model.js";
import { sparkline } from "./sparkline.js";
import { statusBadge } from "./status_badge.js";
import { Table } from "./table.js";

const REFRESH_MS = 5_000;
const MOST_OVERLAID = 6;

const COLUMNS = (chosen, onChoose) => [
  {
    label: "Compare",
    cell: (run) => h("input", {
      type: "checkbox", "aria-label": `Compare ${nameOf(run)}`, checked: chosen.has(run.training_run_id),
      on: { change: ({ target }) => onChoose(run.training_run_id, target.checked) },
    }),
  },
  { label: "Run", lead: true, sort: nameOf, cell: nameCell },
  { label: "Status", sort: (run) => stateOf(run).label, cell: statusBadge },
  { label: "Model", sort: (run) => run.base_model, cell: (run) => h("span", { class: "model break" }, run.base_model) },
  { label: "Loss", right: true, sort: lossOf, cell: (run) => measured(lossOf(run)) },
  { label: "Trend", cell: (run) => sparkline(sparkOf(run)) },
  { label: "Steps", right: true, sort: stepsOf, cell: (run) => count(stepsOf(run) ?? NaN) },
  { label: "Tokens", right: true, sort: tokensOf, cell: (run) => compact(tokensOf(run) ?? NaN) },
  {
    label: "Last used", right: true, sort: (run) => Date.parse(run.last_request_time),
    cell: (run) => h("time", { datetime: run.last_request_time, title: when(run.last_request_time) }, ago(run.last_request_time)),
  },
];

function nameCell(run) {
  const name = nameOf(run);
  return h("div", { class: "run-name" },
    h("a", { href: runLink(run), class: "break" }, name),
    tagsOf(run).length ? h("span", { class: "tags" }, tagsOf(run).map((tag) => h("span", { class: "tag", title: tag }, tag))) : null,
    name === run.training_run_id ? null : h("span", { class: "mono muted small break" }, run.training_run_id));
}

export function runsView(query) {
  const stopped = new AbortController();
  const runs = new Map();
  const chosen = new Set();
  const search = h("input", {
    type: "search", placeholder: "Filter by name, tag, model …", "aria-label": "Filter runs",
    value: query.get("q") ?? "", on: { input: () => draw() },
  });
  const state = h("select", { "aria-label": "Status", on: { change: () => draw() } },
    [["", "All statuses"], ["running", "Running"], ["waiting", "Waiting"], ["idle", "Idle"], ["ended", "Ended"], ["failed", "Failed"]]
      .map(([value, label]) => h("option", { value }, label)));
  const total = h("p", { class: "muted", role: "status" }, "Loading …");
  const badge = h("span", { class: "badge", hidden: true });
  const compare = h("a", { class: "button", hidden: true });
  const content = h("div", { class: "panel" }, h("p", { class: "loading" }, "Loading runs …"));
  const table = new Table({
    caption: "Training runs", columns: COLUMNS(chosen, choose), idOf: (run) => run.training_run_id,
    seal: (run) => JSON.stringify([run, Math.floor(Date.now() / 60_000)]), sortBy: "Last used", descending: true,
  });

  function choose(id, isChosen) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
    const [first, ...others] = [...chosen].slice(0, MOST_OVERLAID);
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size} runs`;
    if (first) compare.href = `#/runs/${encodeURIComponent(first)}?${new URLSearchParams({ with: others.join(",") })}`;
  }

  const draw = throttled(100, () => {
    if (stopped.signal.aborted) return;
    if (runs.size === 0) {
      total.textContent = "No runs yet";
      put(content, emptyState());
      return;
    }
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = [...runs.values()].filter((run) => fits(run, words) && (!state.value || stateOf(run).state === state.value));
    total.textContent = shown.length === runs.size ? counted(runs.size, "run") : `${count(shown.length)} of ${counted(runs.size, "run")}`;
    table.show(shown);
    if (table.element.parentElement !== content) put(content, table.element);
  });

  const ofPage = (page) => {
    for (const run of page) runs.set(run.training_run_id, run);
    draw();
  };
  async function load() {
    try {
      const found = await all("/training_runs", "training_runs", { query: { spark: 1 }, signal: stopped.signal, onPage: ofPage });
      const ids = new Set(found.map((run) => run.training_run_id));
      for (const id of [...runs.keys()]) if (!ids.has(id)) runs.delete(id);
      draw();
    } catch (error) {
      if (stopped.signal.aborted || error.status === 401) return;
      if (runs.size === 0) put(content, failure(error, load));
      else announce(error.message);
    }
  }

  let isLive = false;
  const feed = new LiveFeed({
    onEvent(name, value) {
      if (name !== "run") return;
      runs.set(value.training_run_id, value);
      draw();
    },
    onState(now) {
      isLive = now === "live";
      const [kind, label] = stateLabel(now);
      badge.className = `badge ${kind}`;
      badge.textContent = label;
      badge.hidden = false;
    },
    onGap: load,
  }).start();
  const timer = setInterval(() => { if (!isLive) load(); }, REFRESH_MS);
  load();

  return {
    title: "Runs",
    element: h("div", {},
      h("div", { class: "page-head" },
        h("div", {}, h("h1", {}, "Runs"), total),
        h("div", { class: "row" }, badge, compare, state, search)),
      content),
    stop() {
      stopped.abort();
      feed.stop();
      clearInterval(timer);
    },
  };
}

function emptyState() {
  return h("div", { class: "empty" },
    h("h2", {}, "No runs yet"),
    h("p", { class: "muted" }, "Start one from the command line, with a file of conversations:"),
    snippet(`export TINKER_BASE_URL=${location.origin}\nexport TINKER_API_KEY=tml-…\ntinkex train data.jsonl --base-model MODEL`, "commands"),
    h("p", { class: "muted" }, "or from Python:"),
    snippet([
      "import tinkex",
      `service = tinkex.ServiceClient(base_url="${location.origin}")`,
      'training = service.create_lora_training_client(base_model="MODEL", rank=16)',
    ].join("\n"), "program"),
    h("p", { class: "muted" }, "Base models are listed on the ", h("a", { href: "#/server" }, "server’s view"), "."));
}
