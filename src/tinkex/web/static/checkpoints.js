// All checkpoints: how much they take, and what can be done to them.

import { all, get } from "./api.js";
import { CheckpointList } from "./checkpoint_list.js";
import { runOf } from "./checkpoint_model.js";
import { h, put, throttled } from "./dom.js";
import { bytes, counted } from "./format.js";
import { runsById, shortNameOf } from "./runs_by_id.js";

export function checkpointsView() {
  const stopped = new AbortController();
  const { signal } = stopped;
  const summary = h("p", { class: "muted", role: "status" }, "Loading …");
  const stats = h("div", { class: "stats" });
  const list = new CheckpointList({
    load: () => all("/checkpoints", "checkpoints", { signal }),
    caption: "Checkpoints",
  });
  const search = h("input", { type: "search", placeholder: "Filter by name or run …", "aria-label": "Filter checkpoints" });
  const kind = h("select", { "aria-label": "Kind" },
    [["", "All kinds"], ["training", "Training state"], ["sampler", "For sampling"], ["external", "Export"]]
      .map(([value, label]) => h("option", { value }, label)));
  const draw = throttled(100, () => list.draw());
  search.addEventListener("input", draw);
  kind.addEventListener("change", draw);
  list.filter = (each) => each.checkpoint_type.startsWith(kind.value)
    && `${each.tinker_path} ${list.runNameOf(each)} ${JSON.stringify(each.user_metadata ?? {})}`.toLowerCase().includes(search.value.toLowerCase().trim());

  let quota = null;
  list.onChange = (items) => {
    summary.textContent = counted(items.length, "checkpoint");
    drawStats(stats, items, quota);
  };
  get("/get_server_capabilities", {}, { signal }).then(({ limits }) => {
    quota = limits?.max_disk_bytes_per_owner ?? null;
    drawStats(stats, list.items, quota);
  }, () => {});
  runsById(signal).then((runs) => {
    list.runNameOf = (each) => shortNameOf(runs, runOf(each));
    draw();
  }, () => {}); // the ids say enough
  list.refresh();

  return {
    title: "Checkpoints",
    element: h("div", {},
      h("div", { class: "page-head" },
        h("div", {}, h("h1", {}, "Checkpoints"), summary),
        h("div", { class: "row" }, kind, search)),
      stats,
      h("div", { class: "panel" }, list.element)),
    stop: () => stopped.abort(),
  };
}

function drawStats(stats, items, quota) {
  const size = items.reduce((sum, each) => sum + (each.size_bytes ?? 0), 0);
  const expiring = items.filter((each) => each.expires_at);
  const expiringSize = expiring.reduce((sum, each) => sum + (each.size_bytes ?? 0), 0);
  const shared = items.filter((each) => each.public).length;
  const cards = [
    ["Disk they take", bytes(size), quota ? `${((100 * size) / quota).toFixed(1)} % of your ${bytes(quota)}` : "of this server’s disk"],
    ["Largest", items.length ? bytes(Math.max(...items.map((each) => each.size_bytes ?? 0))) : "–", "one checkpoint"],
    ["With an expiry date", String(expiring.length), `${bytes(expiringSize)} come free`],
    ["Public", String(shared), "every key can read them"],
  ];
  put(stats, cards.map(([name, value, more]) => h("div", { class: "stat" },
    h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "more" }, more))));
}
