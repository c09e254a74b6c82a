// Tables that people can sort, and that scroll inside themselves where the screen is narrow.
import { h, name } from "./dom.js";
import { MISSING } from "./format.js";

/**
 * @template Row
 * @typedef {{title: string, cell: (row: Row) => import("./dom.js").Child, sort?: (row: Row) => string | number,
 *   right?: boolean, wide?: boolean}} Column `wide` columns are left out where the screen is narrow
 */

/** @type {Map<string, {column: string, down: boolean}>} */
const orders = new Map();

/**
 * @template Row
 * @param {{caption: string, columns: Column<Row>[], rows: Row[], key: (row: Row) => string, empty?: string,
 *   changed?: () => void, rowClass?: (row: Row) => string, visibleCaption?: boolean}} table `changed` draws anew after
 *   a click on a title; without it the table cannot be sorted
 */
export function table({ caption, columns, rows, key, empty = "none", changed, rowClass, visibleCaption }) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const order = orders.get(caption);
  const sorted = order ? sort(rows, columns.find((column) => column.title === order.column), order.down) : rows;
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", { class: visibleCaption ? "" : "hidden" }, caption),
      h("thead", null, h("tr", null, columns.map((column) => title(caption, column, changed)))),
      h(
        "tbody",
        null,
        sorted.map((row) =>
          h(
            "tr",
            { key: key(row), class: rowClass?.(row) ?? "" },
            columns.map((column, place) => h(place ? "td" : "th", cellOf(column, place), column.cell(row))),
          ),
        ),
      ),
    ),
  );
}

/** @param {Column<any>} column @param {number} place */
function cellOf(column, place) {
  const classes = [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ");
  return { class: classes || null, scope: place ? null : "row" };
}

/** @param {string} caption @param {Column<any>} column @param {(() => void) | undefined} changed */
function title(caption, column, changed) {
  const order = orders.get(caption);
  const mine = order?.column === column.title;
  const state = mine ? (order.down ? "descending" : "ascending") : null;
  const click = () => {
    if (mine && order.down) orders.delete(caption);
    else orders.set(caption, { column: column.title, down: mine });
    changed?.();
  };
  const mark = mine ? (order.down ? " ▼" : " ▲") : "";
  const words = changed && column.sort
    ? h("button", { class: "sort", onclick: click }, column.title, h("span", { "aria-hidden": "true" }, mark))
    : column.title;
  return h("th", { ...cellOf(column, 1), scope: "col", "aria-sort": state }, words);
}

/**
 * @template Row
 * @param {Row[]} rows @param {Column<Row> | undefined} column @param {boolean} down
 */
function sort(rows, column, down) {
  const value = column?.sort;
  if (!value) return rows;
  const compare = (/** @type {any} */ one, /** @type {any} */ other) => (one < other ? -1 : one > other ? 1 : 0);
  const sorted = [...rows].sort((one, other) => compare(value(one), value(other)));
  return down ? sorted.reverse() : sorted;
}

/**
 * Return a column of names. @template Row
 * @param {string} title @param {(row: Row) => string | undefined} read @param {boolean} [wide] @returns {Column<Row>}
 */
export function names(title, read, wide) {
  return { title, wide, cell: (row) => name(read(row) || MISSING), sort: (row) => read(row) ?? "" };
}

/**
 * Return a column of figures, which are written as the command line writes them. @template Row
 * @param {string} title @param {(row: Row) => any} read @param {(figure: any) => string} [write] @param {boolean} [wide]
 * @returns {Column<Row>}
 */
export function figures(title, read, write = (figure) => String(figure ?? ""), wide) {
  return { title, wide, right: true, cell: (row) => write(read(row)) || MISSING, sort: (row) => Number(read(row) ?? -1) };
}
