// Describe charts over time and strips. Behind each chart stands its table.
import { h, patch } from "./dom.js";
import { key, plot, point } from "./plot.js";
import { figures, names, table } from "./table.js";

/** Return the chart, its legend and its table. @param {Chart} chart */
export function timeChart(chart) {
  const { title, times, series } = chart;
  return h("figure", { class: "chart", key: title },
    h("figcaption", null, title),
    legend(series),
    h("div", { class: "plot", role: "slider", tabindex: 0, "aria-label": `${title}: chart`, "aria-valuemin": 0, "aria-valuemax": Math.max(0, times.length - 1),
      onkeydown: (/** @type {KeyboardEvent} */ event) => key(event, chart),
      onpointermove: (/** @type {PointerEvent} */ event) => point(event, chart),
      own: (/** @type {Element} */ element) => plot(element, chart) }),
    details(chart));
}

/** Offer the chart's table, which is made once somebody opens it. @param {Chart} chart */
function details(chart) {
  const fill = (/** @type {HTMLDetailsElement} */ element) => patch(element, h("summary", null, "As a table"), element.open && tableOf(chart));
  return h("details", { own: fill, ontoggle: (/** @type {any} */ event) => fill(event.currentTarget) });
}

/** @param {Chart} chart */
export function tableOf({ title, times, series, write, writeTime }) {
  return table({
    caption: `${title}: table`,
    rows: times.map((at, index) => ({ time: writeTime(at, index), index })),
    key: (row) => String(row.index),
    columns: [names("time", (row) => row.time), ...series.map((one) => figures(one.name, (/** @type {{index: number}} */ row) => one.values[row.index], write))],
  });
}

/** @param {{name: string, tone: Tone}[]} parts */
export function legend(parts) {
  return h("ul", { class: "legend" }, parts.map((part) => h("li", null, h("span", { class: `swatch tone-${part.tone}` }), part.name)));
}

/**
 * Return parts of a whole as a bar; its label says the same in words.
 * @param {{name: string, tone: Tone, amount: number, text: string}[]} parts @param {number} whole
 */
export function strip(parts, whole) {
  const there = parts.filter((part) => part.amount > 0 && whole > 0);
  const words = there.map((part) => `${part.name} ${part.text}`);
  return h("span", { class: "strip", role: "img", "aria-label": words.join(", ") || "nothing" },
    there.map((part, index) => h("span", { class: `tone-${part.tone}`, title: words[index], style: { width: `${(100 * part.amount) / whole}%` } })));
}
