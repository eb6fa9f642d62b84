// Chooses a run to lay over another.

import { all } from "./api.js";
import { formValues } from "./dialogs.js";
import { failure, h, put } from "./dom.js";
import { fits, nameOf } from "./run_model.js";

const MOST_SHOWN = 200;

/** The id of a run that is not in `without`; null if none was chosen. */
export async function chooseRun(without) {
  const list = h("select", { name: "run", size: "10", "aria-label": "Runs", class: "tall" });
  const search = h("input", { type: "search", placeholder: "Filter …", "aria-label": "Filter runs", on: { input: draw } });
  const problem = h("div");
  let runs = [];

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter((run) => fits(run, words)).slice(0, MOST_SHOWN);
    put(list, shown.map((run) => h("option", { value: run.training_run_id }, `${nameOf(run)} · ${run.base_model}`)));
    if (list.options.length) list.selectedIndex = 0;
  }

  all("/training_runs", "training_runs").then((found) => {
    runs = found.filter((run) => !without.has(run.training_run_id));
    draw();
  }, (error) => put(problem, failure(error)));
  const answer = await formValues({
    title: "Compare with a run",
    fields: [problem, search, list],
    action: "Compare",
  });
  return answer?.run ?? null;
}
