// A run as the views use it, from what servers of different ages say.

/** What is shown of a run's state, and in which colour. */
const STATES = {
  running: ["good", "Running"], waiting: ["warn", "Waiting"], idle: ["", "Idle"],
  ended: ["", "Ended"], failed: ["bad", "Failed"],
};

export function nameOf(run) {
  return run.name || run.user_metadata?.name || run.training_run_id;
}

export function stateOf(run) {
  const state = run.corrupted ? "failed" : run.status?.state ?? (run.ended ? "ended" : "idle");
  const [kind, label] = STATES[state] ?? ["", state];
  return { state, kind, label, reason: run.status?.reason ?? "" };
}

/** The tags as texts: `team=math`, or the name alone where there is no value. */
export function tagsOf(run) {
  return Object.entries(run.tags ?? {}).map(([name, value]) => (value ? `${name}=${value}` : name));
}

/** The tags in what was typed, as the server keeps them. */
export function tagsIn(text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  return Object.fromEntries(parts.map((part) => {
    const [name, ...value] = part.split("=");
    return [name.trim(), value.join("=").trim()];
  }));
}

export function stepsOf(run) {
  return run.latest?.step ?? run.usage?.optimizer_steps ?? null;
}

export function tokensOf(run) {
  return run.usage?.tokens ?? run.latest?.tokens ?? null;
}

/** The loss that says most: per token where it is known. */
export function lossOf(run) {
  return run.latest?.loss_per_token ?? run.latest?.["loss:sum"] ?? null;
}

/** The values of the sparkline; some servers send none. */
export function sparkOf(run) {
  return run.spark ?? [];
}

export function runLink(run) {
  return `#/runs/${encodeURIComponent(run.training_run_id)}`;
}

/** Whether a run fits what was typed: every word is in its name, id, model, tags or metadata. */
export function fits(run, words) {
  const text = [
    nameOf(run), run.training_run_id, run.base_model, ...tagsOf(run), stateOf(run).label,
    JSON.stringify(run.user_metadata ?? {}),
  ].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}
