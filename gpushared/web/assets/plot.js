// Draw a chart as HTML and SVG, whose colours and patterns are those of the style sheet in each theme.
import { h, patch } from "./dom.js";

const TICKS = 4;
const MARKS = 9;
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY];
/** @type {WeakMap<Element, number>} the time whose figures are read out, by its number */
const chosen = new WeakMap();
/** @type {WeakMap<Element, string>} what is drawn, so that the same is not drawn again each second */
const drawn = new WeakMap();

/** Fill an element with a chart. @param {Element} element @param {Chart} chart */
export function plot(element, chart) {
  const last = chart.times.length - 1;
  const at = Math.min(chosen.get(element) ?? last, last);
  const words = last < 0 ? "nothing" : `${chart.writeTime(chart.times[at], at)}: ${chart.series.map((one) => `${one.name} ${chart.write(one.values[at]) || "-"}`).join(", ")}`;
  const looks = `${words} ${at} ${JSON.stringify([chart.times, chart.series])}`;
  if (drawn.get(element) === looks) return;
  drawn.set(element, looks);
  element.setAttribute("aria-valuenow", String(Math.max(0, at)));
  element.setAttribute("aria-valuetext", words);
  patch(element, picture(chart, chosen.has(element) ? at : -1), h("p", { class: "readout" }, words));
}

/** Read out another time. @param {Element} element @param {Chart} chart @param {number} at */
function choose(element, chart, at) {
  chosen.set(element, Math.min(chart.times.length - 1, Math.max(0, at)));
  plot(element, chart);
}

/** @param {KeyboardEvent} event @param {Chart} chart */
export function key(event, chart) {
  const element = /** @type {Element} */ (event.currentTarget);
  const last = chart.times.length - 1;
  const to = /** @type {Record<string, (at: number) => number>} */ ({ ArrowLeft: (at) => at - 1, ArrowRight: (at) => at + 1, Home: () => 0, End: () => last })[event.key];
  if (!to) return;
  event.preventDefault();
  choose(element, chart, to(chosen.get(element) ?? last));
}

/** @param {PointerEvent} event @param {Chart} chart */
export function point(event, chart) {
  const element = /** @type {Element} */ (event.currentTarget);
  const area = element.querySelector(".area")?.getBoundingClientRect();
  if (!area) return;
  const [first, last] = rangeOf(chart);
  const time = first + ((event.clientX - area.left) / area.width) * (last - first);
  choose(element, chart, chart.times.reduce((best, one, at) => (Math.abs(one - time) < Math.abs(chart.times[best] - time) ? at : best), 0));
}

/** @param {Chart} chart @param {number} at */
function picture(chart, at) {
  const range = rangeOf(chart);
  const left = (/** @type {number} */ time) => (100 * (time - range[0])) / (range[1] - range[0]);
  const ticks = ticksOf(chart);
  const top = ticks[ticks.length - 1];
  return h("div", { class: "picture", "aria-hidden": "true" },
    ticks.map((tick) => h("span", { class: "tick", style: { bottom: `${(100 * tick) / top}%` } }, h("span", null, `${tick}${chart.suffix ?? ""}`))),
    h("div", { class: "area" },
      chart.form === "bars" ? bars(chart, top) : lines(chart, left, top),
      at >= 0 && h("span", { class: "cursor", style: { left: `${left(chart.times[at])}%` } })),
    h("div", { class: "marks" }, marksOf(range, chart.form === "bars" ? DAY : MINUTE).map(([time, words]) => h("span", { style: { left: `${left(time)}%` } }, words))));
}

/** @param {Chart} chart @param {number} top */
function bars({ times, series, unit }, top) {
  const margin = { margin: `0 ${14 / times.length}%` };
  return times.map((_, at) => h("span", { class: "bar-of-parts", style: margin },
    series.map((one) => h("span", { class: `tone-${one.tone}`, style: { height: `${(100 * Number(one.values[at])) / unit / top}%` } }))));
}

/** @param {Chart} chart @param {(time: number) => number} left @param {number} top */
function lines({ times, series, unit }, left, top) {
  const point = (/** @type {number} */ at, /** @type {number} */ value) => `${left(times[at]).toFixed(2)} ${(100 - (100 * value) / unit / top).toFixed(2)}`;
  const paths = series.map(({ tone, values }) => {
    const pieces = piecesOf(values).map(([first, last]) => ({ first, last, path: values.slice(first, last + 1).map((value, at) => point(first + at, Number(value))).join("L") }));
    const below = pieces.map(({ first, last, path }) => `M${point(first, 0)}L${path}L${point(last, 0)}Z`);
    // A piece of one sample is drawn as a dot.
    return [tone === "used" && h("path", { class: "below", d: below.join("") }), h("path", { class: `line-${tone}`, d: pieces.map(({ first, last, path }) => `M${path}${first === last ? "h.01" : ""}`).join("") })];
  });
  return h("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", width: "100%", height: "100%" }, paths);
}

/** Return the first and the last number of each piece: a time without a sample is a gap. @param {(number | null)[]} values */
export function piecesOf(values) {
  /** @type {[number, number][]} */
  const pieces = [];
  values.forEach((value, at) => {
    if (value === null) return;
    if (at && values[at - 1] !== null) pieces[pieces.length - 1][1] = at;
    else pieces.push([at, at]);
  });
  return pieces;
}

/**
 * Return the first and the last time of the axis: bars have half a step on both sides, and one sample a minute.
 * @param {Pick<Chart, "form" | "times">} chart @returns {[number, number]}
 */
export function rangeOf({ form, times }) {
  const [first, last] = [times[0] ?? 0, times[times.length - 1] ?? 1];
  const step = times.length > 1 ? (last - first) / (times.length - 1) : form === "bars" ? DAY : 2 * MINUTE;
  return form === "bars" || first === last ? [first - step / 2, last + step / 2] : [first, last];
}

/** Return round figures from 0 to above the highest value. @param {Chart} chart */
function ticksOf({ form, series, unit }) {
  const values = series[0].values.map((_, at) => series.map((one) => Number(one.values[at])));
  const most = Math.max(...values.map((column) => (form === "bars" ? column.reduce((sum, value) => sum + value, 0) : Math.max(...column))), 0) / unit || 1;
  const rough = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5].find((one) => one * power >= rough) ?? 10);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, number) => Number((number * step).toPrecision(6)));
}

/**
 * Return round times with their words: days, or times of day with the day where it changes.
 * @param {[number, number]} range @param {number} least the shortest step @returns {[number, string][]}
 */
function marksOf([first, last], least) {
  const step = STEPS.find((one) => one >= least && (last - first) / one <= MARKS) ?? (last - first) / MARKS;
  const begin = new Date(first * 1000);
  const midnight = +new Date(begin.getFullYear(), begin.getMonth(), begin.getDate()) / 1000;
  const times = Array.from({ length: MARKS + Math.ceil(DAY / step) + 2 }, (_, number) => midnight + number * step).filter((time) => time >= first && time <= last);
  let before = "";
  return times.map((time) => {
    const moment = new Date(time * 1000);
    const [day, clock] = [[moment.getMonth() + 1, moment.getDate()], [moment.getHours(), moment.getMinutes()]].map((pair) => pair.map((part) => String(part).padStart(2, "0")));
    const date = day.join("-");
    const words = step >= DAY ? date : date === before ? clock.join(":") : `${clock.join(":")}\n${date}`;
    before = date;
    return [time, words];
  });
}
