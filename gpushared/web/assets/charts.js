// Describe charts over time and strips. Behind each chart stands its table.
import { h } from "./dom.js";
import { Plot } from "./plot.js";
import { table } from "./table.js";

/** A tone is a colour with a pattern or a dash, so that no meaning is carried by colour alone.
 * @typedef {"used" | "big" | "idle" | "unseen" | "held" | "peak" | "past"} Tone */
/** A missing value is null: the line has a gap there.
 * @typedef {{name: string, tone: Tone, values: (number | null)[]}} Series */
/** Values of `stack` and `bars` add up, those of `lines` do not. `times` are seconds since the epoch. The axis counts
 * in `unit`s of the values, with `suffix` behind its figures, up to `top` units.
 * @typedef {{title: string, form: "lines" | "stack" | "bars", times: number[], series: Series[], unit: number,
 *   suffix: string, top?: number,
 *   write: (value: number | null) => string, writeTime: (at: number, index: number) => string}} Chart */
/** @typedef {{name: string, tone: Tone, amount: number, text: string}} Part */

/** Return the chart, its legend and its table. @param {Chart} chart */
export function timeChart(chart) {
  return h(
    "figure",
    { class: "chart", key: chart.title },
    h("figcaption", null, chart.title),
    legend(chart.series),
    plot(chart),
    h("details", null, h("summary", null, "As a table"), tableOf(chart)),
  );
}

/** @param {Chart} chart */
function plot(chart) {
  return h("div", {
    class: "plot",
    role: "slider",
    tabindex: 0,
    "aria-label": `${chart.title}: chart`,
    "aria-valuemin": 0,
    "aria-valuemax": Math.max(0, chart.times.length - 1),
    own: (/** @type {HTMLElement} */ element) => Plot.of(element).show(chart),
    gone: (/** @type {HTMLElement} */ element) => Plot.of(element).end(),
  });
}

/** @param {{name: string, tone: Tone}[]} parts */
export function legend(parts) {
  return h("ul", { class: "legend" }, parts.map((part) => h("li", null, h("span", { class: `swatch tone-${part.tone}` }), part.name)));
}

/** @param {Chart} chart */
function tableOf(chart) {
  const rows = chart.times.map((at, index) => ({ time: chart.writeTime(at, index), index }));
  return table({
    caption: `${chart.title}: table`,
    rows,
    key: (row) => String(row.index),
    columns: [
      { title: "time", cell: (row) => row.time },
      ...chart.series.map((one) => ({
        title: one.name,
        right: true,
        cell: (/** @type {{index: number}} */ row) => chart.write(one.values[row.index] ?? null),
      })),
    ],
  });
}

/**
 * Return parts of a whole as a bar; its label says the same in words.
 * @param {Part[]} parts
 * @param {number} whole the length of the whole strip, in the unit of the amounts
 */
export function strip(parts, whole) {
  const there = parts.filter((part) => part.amount > 0 && whole > 0);
  const words = there.map((part) => `${part.name} ${part.text}`);
  return h(
    "span",
    { class: "strip", role: "img", "aria-label": words.join(", ") || "nothing" },
    there.map((part, index) => h("span", { class: `tone-${part.tone}`, title: words[index], style: { width: `${(100 * part.amount) / whole}%` } })),
  );
}
