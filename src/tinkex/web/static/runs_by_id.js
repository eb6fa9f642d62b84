// The runs by their ids, for views that name what runs have made.

import { all } from "./api.js";
import { nameOf } from "./run_model.js";

/** All runs in a map. */
export async function runsById(signal) {
  const runs = await all("/training_runs", "training_runs", { signal });
  return new Map(runs.map((run) => [run.training_run_id, run]));
}

/** The name of the run with this id; an id that is not known, or has no name, is cut short. */
export function shortNameOf(runs, runId) {
  const name = runs.has(runId) ? nameOf(runs.get(runId)) : runId;
  return name === runId && runId.length > 20 ? `${runId.slice(0, 8)}…${runId.slice(-8)}` : name;
}
