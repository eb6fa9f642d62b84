// The metric points of one run: read by cursor, a part at a time, and joined with what is live.

import { get, path } from "./api.js";

const MOST_POINTS = 20_000; // of one answer

export class Series {
  #cursor = null;
  #reading = null;
  #again = false;

  constructor(runId) {
    this.runId = runId;
    this.names = [];
    this.columns = { index: [], step: [], time: [], tokens: [] };
    this.isThinned = false;
    this.isMissing = false;
  }

  /** Everything since the last read. Calls while one is under way make one more read. */
  async read(signal) {
    if (this.#reading) {
      this.#again = true;
      return this.#reading;
    }
    this.#reading = this.#readAll(signal).finally(() => { this.#reading = null; });
    return this.#reading;
  }

  /** Forgets all points: the server thinned them, or began anew. */
  reset() {
    this.#cursor = null;
    this.columns = { index: [], step: [], time: [], tokens: [] };
  }

  get length() { return this.columns.index.length; }

  async #readAll(signal) {
    let hasMore = true;
    while (hasMore) {
      this.#again = false;
      const query = { max_points: MOST_POINTS, after: this.#cursor ?? undefined };
      let page;
      try {
        page = await get(`${path("training_runs", this.runId)}/metrics`, query, { signal });
      } catch (error) {
        if (!error.isMissingRoute) throw error;
        this.isMissing = true;
        return;
      }
      if (page.reset) this.reset();
      this.#append(page.columns);
      this.#cursor = page.cursor ?? this.#cursor;
      this.isThinned = Boolean(page.thinned) || this.isThinned;
      hasMore = Boolean(page.has_more) || this.#again;
    }
  }

  #append(columns) {
    const before = this.length;
    const added = columns.index?.length ?? columns.step?.length ?? 0;
    for (const [name, values] of Object.entries(columns)) {
      const known = this.columns[name] ?? new Array(before).fill(null);
      for (const value of values) known.push(value);
      this.columns[name] = known;
    }
    for (const [name, known] of Object.entries(this.columns)) {
      while (known.length < before + added) known.push(null);
      if (!AXES.has(name) && !this.names.includes(name)) this.names.push(name);
    }
  }
}

const AXES = new Set(["index", "step", "time", "tokens"]);
