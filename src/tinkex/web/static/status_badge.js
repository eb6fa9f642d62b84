// The state of a run as a badge.

import { h } from "./dom.js";
import { stateOf } from "./run_model.js";

export function statusBadge(run) {
  const { kind, label, reason } = stateOf(run);
  return h("span", { class: `badge ${kind}`, title: reason || null }, label,
    reason ? h("span", { class: "unseen" }, `: ${reason}`) : null);
}
