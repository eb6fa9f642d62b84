// The server: what its engine does now, who waits, and what memory and disk have left.

import { get, send } from "./api.js";
import { failure, h, put, toast } from "./dom.js";
import { bytes, compact, count, counted, duration } from "./format.js";
import { KeysPanel } from "./keys.js";
import { session } from "./session.js";
import { simpleTable } from "./simple_table.js";
import { UsagePanel } from "./usage.js";

const EVERY_MS = 2_000;
const DOING = {
  idle: "Idle", training: "Training", sampling: "Sampling", loading: "Loading", saving: "Saving", scoring: "Scoring",
  recovery: "Recovering",
};

export function serverView() {
  const stopped = new AbortController();
  const { signal } = stopped;
  const state = h("p", { class: "row muted" }, "Loading …");
  const stats = h("div", { class: "stats" });
  const queue = h("div");
  const workers = h("div");
  const models = h("div");
  const problem = h("div");
  const keys = new KeysPanel(signal);
  const usage = new UsagePanel(signal);

  async function read() {
    if (document.hidden) return;
    try {
      const status = await readStatus(signal);
      put(problem);
      draw(status);
    } catch (error) {
      if (!signal.aborted && error.status !== 401) put(problem, failure(error));
    }
  }

  function draw(status) {
    drawState(state, status);
    put(stats, cards(status).map(([name, value, more, share]) => h("div", { class: "stat" },
      h("div", { class: "name" }, name), h("div", { class: "value" }, value),
      share === undefined ? null : meter(name, share), more ? h("div", { class: "more" }, more) : null)));
    drawQueue(queue, status.queue);
    drawWorkers(workers, status.workers ?? []);
  }

  get("/get_server_capabilities", {}, { signal }).then((found) => drawModels(models, found), () => {});
  read();
  const timer = setInterval(read, EVERY_MS);
  return {
    title: "Server",
    element: h("div", {},
      h("div", { class: "page-head" }, h("div", {}, h("h1", {}, "Server"), state), operatorButton(read)),
      problem, stats,
      h("div", { class: "columns even" },
        h("section", { class: "panel" }, h("h2", {}, "Queue"), queue),
        h("section", { class: "panel" }, h("h2", {}, "Workers"), workers)),
      h("div", { class: "columns even" }, keys.element, usage.element),
      h("section", { class: "panel" }, h("h2", {}, "Base models"), models)),
    stop() {
      stopped.abort();
      clearInterval(timer);
    },
  };
}

/** What the operator's token opens if there is one; else what the key does; else health alone. */
async function readStatus(signal) {
  if (session.operatorToken) {
    try {
      const headers = { "X-Operator-Token": session.operatorToken };
      return { ...(await (await send("GET", "/api/v1/operator/status", { headers, signal })).json()), isAll: true };
    } catch (error) {
      if (error.code !== "not-an-operator" && !error.isMissingRoute) throw error;
      session.setOperatorToken("");
      if (!error.isMissingRoute) toast("This server has another operator token.", "bad");
    }
  }
  try {
    return await get("/status", {}, { signal });
  } catch (error) {
    if (!error.isMissingRoute) throw error;
    const [{ version }, health] = await Promise.all([get("/version", {}, { signal }), get("/healthz", {}, { signal })]);
    return { version, state: health.engine.state, isShort: true };
  }
}

function drawState(state, status) {
  const isGood = status.state === "ready";
  put(state,
    h("span", { class: `badge ${isGood ? "good" : "warn"}` }, isGood ? "Ready" : String(status.state).replace("_", " ")),
    h("span", {}, `Tinkex ${status.version}`),
    status.uptime_s === undefined ? null : h("span", {}, `up for ${duration(status.uptime_s)}`),
    status.isAll ? h("span", { class: "badge plain warn" }, "Operator’s view") : null,
    status.isShort ? h("span", {}, "This server has no status route.") : null);
}

function cards({ engine, tokens_per_s: speed, memory, disk }) {
  const found = [];
  if (engine) {
    found.push(["Engine", DOING[engine.doing] ?? engine.doing, `${Math.round(100 * engine.busy_share)} % busy`, engine.busy_share]);
  }
  if (speed) {
    const total = Object.values(speed).reduce((sum, each) => sum + each, 0);
    const parts = Object.entries(speed).map(([use, value]) => `${compact(value)} ${use}`);
    found.push(["Tokens per second", compact(total), parts.join(", ")]);
  }
  if (memory) {
    const used = (memory.server_bytes ?? 0) + (memory.engine_bytes ?? 0);
    const share = memory.machine_bytes ? used / memory.machine_bytes : undefined;
    found.push(["Memory", bytes(used), memory.machine_bytes ? `of ${bytes(memory.machine_bytes)} of this machine` : "", share]);
  }
  if (disk) {
    const share = disk.total_bytes ? 1 - disk.free_bytes / disk.total_bytes : undefined;
    found.push(["Disk", `${bytes(disk.free_bytes)} free`, `of ${bytes(disk.total_bytes)}`, share]);
    if (disk.used_by_you_bytes !== undefined) {
      found.push(["Your files", bytes(disk.used_by_you_bytes), `of ${bytes(disk.quota_bytes)} quota`, disk.used_by_you_bytes / disk.quota_bytes]);
    }
  }
  return found;
}

function meter(name, share) {
  const value = Math.min(1, Math.max(0, share));
  return h("meter", { "aria-label": name, min: "0", max: "1", high: "0.85", optimum: "0.2", value: value.toFixed(3) });
}

function drawQueue(element, queue) {
  if (!queue) {
    put(element, h("p", { class: "muted" }, "This server does not report its queue."));
    return;
  }
  const { training = {}, sampling = {}, yours, tenants } = queue;
  const rows = [
    ["Training", training.operations, training.running_operations, training.oldest_s],
    ["Sampling", sampling.requests, sampling.running_requests, sampling.oldest_s],
  ];
  put(element,
    simpleTable("What waits", ["", "Waiting", "Running", "Oldest"], rows.map(([name, waiting, running, oldest]) =>
      [name, count(waiting), count(running), duration(oldest)])),
    yours ? h("p", { class: "muted small" }, `Of these yours: ${counted(yours.operations, "operation")}, ${counted(yours.requests, "sampling request")}.`) : null,
    tenants ? tenantTable(tenants) : h("p", { class: "muted small" }, "The operator’s token shows the queue by tenant."));
}

function tenantTable(tenants) {
  if (tenants.length === 0) return h("p", { class: "muted small" }, "No tenant has work here now.");
  return simpleTable("Queue by tenant", ["Tenant", "Training", "Sampling", "Running"], tenants.map((each) =>
    [each.owner, count(each.training), count(each.sampling), count(each.running)]));
}

function drawWorkers(element, workers) {
  if (workers.length === 0) {
    put(element, h("p", { class: "muted" }, "No workers are listed."));
    return;
  }
  put(element, simpleTable("Workers", ["Name", "State", "Does", "Busy", "Adapters"], workers.map((each) => [
    each.host ? `${each.name} (${each.host})` : each.name,
    h("span", { class: `badge ${each.state === "ready" ? "good" : "warn"}` }, each.state),
    DOING[each.doing] ?? each.doing ?? "–", `${Math.round(100 * (each.busy_share ?? 0))} %`, count(each.num_adapters)]), 3));
}

function drawModels(element, { supported_models: models = [], losses = [] }) {
  put(element, simpleTable("Base models", ["Model", "Context"], models.map((each) =>
    [h("a", { href: `#/playground?${new URLSearchParams({ a: each.model_name })}`, class: "break" }, each.model_name), `${count(each.max_context_length)} tokens`])),
    h("p", { class: "muted small" }, `Losses: ${losses.map((each) => each.name ?? each).join(", ")}`));
}

function operatorButton(onChange) {
  const button = h("button", { type: "button" });
  const draw = () => { button.textContent = session.operatorToken ? "Leave the operator’s view" : "Operator’s view …"; };
  button.addEventListener("click", async () => {
    if (session.operatorToken) session.setOperatorToken("");
    else {
      const { askForToken } = await import("./operator_token.js");
      const token = await askForToken();
      if (token) session.setOperatorToken(token);
    }
    draw();
    onChange();
  });
  draw();
  return h("div", { class: "row" }, button);
}
