// A table that sorts and pages. Rows are kept by their id, so that an update changes only what is
// new and neither focus nor pointer lose their place.

import { add, h, put } from "./dom.js";
import { count } from "./format.js";

const COLLATOR = new Intl.Collator("en", { numeric: true });

export class Table {
  /**
   * `columns`: { label, cell(row), sort(row)?, right?, lead? }; `idOf(row)` identifies a row;
   * `seal(row)` is text that changes when a row must be drawn again.
   */
  constructor({ caption, columns, idOf, seal = JSON.stringify, sortBy = null, descending = false, pageSize = 50 }) {
    Object.assign(this, { columns, idOf, seal, sortBy, descending, pageSize });
    this.page = 0;
    this.rows = [];
    this.drawn = new Map(); // id -> { tr, seal }
    this.head = h("tr");
    this.body = h("tbody");
    this.pager = h("div", { class: "pager" });
    this.element = h("div", {},
      h("div", { class: "scroll" },
        h("table", { class: "cards" }, h("caption", { class: "unseen" }, caption), h("thead", {}, this.head), this.body)),
      this.pager);
    this.#drawHead();
  }

  /** Shows these rows; they are sorted here. */
  show(rows) {
    this.rows = rows;
    this.#draw();
  }

  #drawHead() {
    put(this.head, this.columns.map((column) => {
      const props = { scope: "col", class: column.right ? "right" : null };
      if (!column.sort) return h("th", props, column.label);
      const isActive = this.sortBy === column.label;
      if (isActive) props["aria-sort"] = this.descending ? "descending" : "ascending";
      return h("th", props, h("button", { type: "button", on: { click: () => this.#sortBy(column) } }, column.label));
    }));
  }

  #sortBy(column) {
    this.descending = this.sortBy === column.label ? !this.descending : Boolean(column.right);
    this.sortBy = column.label;
    this.page = 0;
    this.#drawHead();
    this.head.querySelector("[aria-sort] button")?.focus();
    this.#draw();
  }

  #sorted() {
    const column = this.columns.find((each) => each.label === this.sortBy);
    if (!column?.sort) return this.rows;
    const sign = this.descending ? -1 : 1;
    return this.rows
      .map((row) => [column.sort(row), row])
      .sort(([a], [b]) => {
        if (isNone(a) || isNone(b)) return isNone(a) - isNone(b); // what is missing comes last
        return sign * (typeof a === "string" ? COLLATOR.compare(a, b) : a - b);
      })
      .map(([, row]) => row);
  }

  #draw() {
    const pages = Math.max(1, Math.ceil(this.rows.length / this.pageSize));
    this.page = Math.min(this.page, pages - 1);
    const first = this.page * this.pageSize;
    const shown = this.#sorted().slice(first, first + this.pageSize);
    const kept = new Map();
    shown.forEach((row, place) => {
      const id = this.idOf(row);
      const known = this.drawn.get(id);
      const seal = this.seal(row);
      const tr = known?.seal === seal ? known.tr : this.#row(row, known?.tr);
      kept.set(id, { tr, seal });
      if (this.body.children[place] !== tr) this.body.insertBefore(tr, this.body.children[place] ?? null);
    });
    while (this.body.children.length > shown.length) this.body.lastElementChild.remove();
    this.drawn = kept;
    this.#drawPager(first, shown.length, pages);
  }

  #row(row, old) {
    const cells = this.columns.map((column) =>
      h("td", { class: [column.right && "right", column.lead && "lead"].filter(Boolean).join(" ") || null, "data-label": column.label },
        column.cell(row)));
    if (!old) return add(h("tr"), cells);
    const focused = [...old.querySelectorAll("a, button")].indexOf(document.activeElement);
    put(old, cells); // the same element, so that the pointer stays over it
    if (focused >= 0) old.querySelectorAll("a, button")[focused]?.focus({ preventScroll: true });
    return old;
  }

  #drawPager(first, number, pages) {
    if (pages === 1) {
      put(this.pager);
      return;
    }
    const go = (by) => () => {
      this.page += by;
      this.#draw();
      this.pager.querySelector(by > 0 ? "[data-next]" : "[data-previous]")?.focus();
    };
    put(this.pager,
      h("span", { role: "status" }, `${count(first + 1)}–${count(first + number)} of ${count(this.rows.length)}`),
      h("span", { class: "row" },
        h("button", { type: "button", "data-previous": true, disabled: this.page === 0, on: { click: go(-1) } }, "Previous"),
        h("button", { type: "button", "data-next": true, disabled: this.page === pages - 1, on: { click: go(1) } }, "Next")));
  }
}

function isNone(value) {
  return value === null || value === undefined || Number.isNaN(value);
}
