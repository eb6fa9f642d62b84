// A table that neither sorts nor pages.

import { h } from "./dom.js";

/** Rows of cells under heads; the first cell of a row names it. The first `texts` columns are no numbers. */
export function simpleTable(caption, heads, rows, texts = 1) {
  const side = (place) => (place >= texts ? "right" : null);
  return h("div", { class: "scroll" }, h("table", { class: "plain" },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, heads.map((head, place) => h("th", { scope: "col", class: side(place) }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h(place ? "td" : "th", { class: place ? side(place) : "break", scope: place ? null : "row" }, cell)))))));
}
