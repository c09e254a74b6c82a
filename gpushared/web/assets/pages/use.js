// Show who held how much, how much of it was used, and who waited meanwhile.
import { legend, timeChart } from "../charts.js";
import { h } from "../dom.js";
import { hours, lasted, percent } from "../format.js";
import { Asked, OWNERS, SPLIT, TIME, filterForm, inTerminal, ofOthers, shortcuts, split, windowOf } from "../past.js";
import { beginOf } from "../period.js";
import { figures, names, table } from "../table.js";

export const title = "Use";
const GROUPINGS = ["user", "project", "class", "gpu", "node", "model", "day", "week"];
const GPU_HOUR_MS = 3_600_000;
const GIB_HOURS_TO_GPU_MS = GPU_HOUR_MS / (1024 * 3600); // so that GiB hours are written as GPU hours are
const MAX_DAYS_SECONDS = 100 * 86400; // the daemon answers for some more days, and for weeks beyond

const asked = new Asked((words, context) => {
  const window = windowOf(words, context);
  const step = window.until - window.since > MAX_DAYS_SECONDS ? "week" : "day";
  return { window, step, by: words.by || GROUPINGS[0], ...monthsOf(window, context.now) };
});
export const { watch } = asked;

/** Return this month so far, and as much of the last one. @param {PastWindow} window @param {number} now */
function monthsOf(window, now) {
  const moment = new Date(now * 1000);
  const begin = beginOf("month", moment);
  const last = beginOf("month", new Date(+begin - 1));
  const sameTime = new Date(last.getFullYear(), last.getMonth(), moment.getDate(), moment.getHours(), moment.getMinutes(), moment.getSeconds());
  return { current: { ...window, since: +begin / 1000, until: now }, past: { ...window, since: +last / 1000, until: Math.min(+sameTime, +begin) / 1000 } };
}

/** @param {any} _ @param {Context} context */
export function view(_, context) {
  const { parameters, pool } = context;
  return [
    h("h1", null, "Use"),
    shortcuts("use", context),
    filterForm("use", [{ label: "By", name: "by", options: GROUPINGS, usual: GROUPINGS[0] }, ...TIME, ...OWNERS], context),
    asked.show(context, ({ window, by }) => [usage(window, by)], (_, sums) => totals(sums)),
    asked.show(context, ({ window, step }) => [usage(window, step)], ({ step }, course) => timeChart(courseOf(course.rows, step))),
    asked.show(context, ({ window, by }) => [usage(window, by)], ({ by }, sums) => [h("h2", null, `By ${by}`), legend(SPLIT), groups(sums.rows, by, context)]),
    h("h2", null, "This month to date, and the same days of the last month"),
    asked.show(context, ({ current, past }) => [usage(current, "day"), usage(past, "day")],
      ({ current }, now, before) => h("div", { class: "cards" },
        h("div", { class: "card" }, timeChart(monthChart(current, now.rows, before.rows))),
        h("div", { class: "card" }, comparison(now, before)))),
    h("h2", null, "Waiting"),
    asked.show(context, ({ window }) => [["History/Waits", { window, by: "class" }]], (_, answer) => waits(answer)),
    ofOthers(context),
    inTerminal("usage", parameters, pool),
  ];
}

/** @param {PastWindow} window @param {string} by @returns {[string, object]} */
function usage(window, by) {
  return ["History/Usage", { window, by }];
}

/** @param {UsageResponse} sums */
function totals({ total, waited_requests: requests, waited_ms }) {
  const idle = `${hours(total?.account?.idle_gpu_ms)} GPU hours lay idle`;
  const meanwhile = requests ? ` while ${requests === 1 ? "1 request" : `${requests} requests`} waited ${lasted(waited_ms)}.` : ", and nobody waited.";
  return [h("dl", { class: "figures" }, figuresOf(total).map(([name, figure]) => h("div", null, h("dt", null, name), h("dd", null, figure)))), h("p", null, idle + meanwhile)];
}

/** @param {UsageRow | undefined} total @returns {[string, string][]} */
function figuresOf(total) {
  const account = total?.account;
  return [
    ["GPU hours held", hours(account?.held_gpu_ms)],
    ["used of held", percent(account?.use_of_held_ratio) || "-"],
    ["GPU hours idle", hours(account?.idle_gpu_ms)],
    ["GPU hours too big", hours(account?.too_big_gpu_ms)],
    ["leases", String(total?.leases)],
  ];
}

/** @param {UsageRow[]} rows @param {string} step @returns {Chart} */
function courseOf(rows, step) {
  return {
    title: `GPU hours held, by ${step}`,
    form: "bars",
    times: rows.map((row) => +new Date(`${row.key}T00:00`) / 1000),
    series: SPLIT.map(({ name, tone, field }) => ({ name, tone, values: rows.map((row) => Number(row.account?.[field])) })),
    unit: GPU_HOUR_MS,
    write: hours,
    writeTime: (_, index) => (step === "week" ? `week of ${rows[index].key}` : rows[index].key),
  };
}

/** @param {UsageRow[]} rows @param {string} by @param {Context} context */
function groups(rows, by, { draw }) {
  const most = Math.max(...rows.map((row) => Number(row.account?.held_gpu_ms)));
  /** @type {Column<UsageRow>[]} */
  const columns = [
    names(by, (row) => row.key),
    figures("leases", (row) => row.leases),
    figures("GPU hours", (row) => row.account?.held_gpu_ms, hours),
    { title: "of them", wide: true, cell: (row) => row.account && split(row.account, most) },
    figures("use", (row) => row.account?.use_of_held_ratio, percent),
    ...SPLIT.map(({ name, field }) => figures(name, (/** @type {UsageRow} */ row) => row.account?.[field], hours, field !== "idle_gpu_ms")),
    figures("GiB hours", (row) => Number(row.account?.held_mib_seconds) * GIB_HOURS_TO_GPU_MS, hours, true),
    figures("memory use", (row) => row.account?.memory_of_held_ratio, percent, true),
  ];
  return table({ caption: `Use by ${by}`, columns, rows, key: (row) => row.key, changed: draw, empty: "Nothing was held in this time." });
}

/** @param {PastWindow} current @param {UsageRow[]} now @param {UsageRow[]} before @returns {Chart} */
function monthChart(current, now, before) {
  const days = Array.from({ length: Math.max(now.length, before.length) }, (_, day) => day);
  const begin = new Date(current.since * 1000);
  return {
    title: "GPU hours held since the month began",
    form: "lines",
    times: days.map((day) => +new Date(begin.getFullYear(), begin.getMonth(), day + 1) / 1000),
    series: [{ name: "this month", tone: "used", values: days.map(sumUpTo(now)) }, { name: "last month", tone: "past", values: days.map(sumUpTo(before)) }],
    unit: GPU_HOUR_MS,
    write: (value) => (value === null ? "" : hours(value)),
    writeTime: (_, day) => `day ${day + 1}`,
  };
}

/** @param {UsageRow[]} rows @returns {(day: number) => number | null} */
function sumUpTo(rows) {
  return (day) => (day < rows.length ? rows.slice(0, day + 1).reduce((sum, row) => sum + Number(row.account?.held_gpu_ms), 0) : null);
}

/** @param {UsageResponse} now @param {UsageResponse} before */
function comparison(now, before) {
  const [one, other] = [now, before].map((answer) => [...figuresOf(answer.total), ["waited together", lasted(answer.waited_ms)]]);
  const held = [now, before].map((answer) => Number(answer.total?.account?.held_gpu_ms));
  const change = held[1] ? `${held[0] < held[1] ? "−" : "+"}${percent(Math.abs(held[0] / held[1] - 1))}` : "-";
  return [
    table({
      caption: "This month to date, and the same days of the last month",
      rows: one.map(([name, figure], index) => ({ name, figure, past: other[index][1] })),
      key: (row) => row.name,
      columns: [names("figure", (row) => row.name), figures("this month", (row) => row.figure), figures("last month", (row) => row.past)],
    }),
    h("p", null, "GPU hours held against the last month: ", h("strong", null, change)),
  ];
}

/** @param {WaitsResponse} answer */
function waits({ total, rows }) {
  /** @type {Column<WaitsRow>[]} */
  const columns = [
    names("class", (row) => row.key),
    ...["requests", "waited"].map((field) => figures(field, (/** @type {any} */ row) => row[field])),
    ...["p50", "p90", "p99", "longest", "total"].map((field) => figures(field, (/** @type {any} */ row) => row[`${field}_ms`], lasted)),
    figures("waiting", (row) => row.waiting, undefined, true),
  ];
  return [
    total && h("p", null, `${total.waited} of ${total.requests} requests waited, ${lasted(total.total_ms)} together. P50, P90 and P99 are the waits that 50, 90 and 99 of 100 requests did not exceed.`),
    table({ caption: "Waits by class", columns, rows, key: (row) => row.key, empty: "Nobody asked for anything in this time." }),
  ];
}
