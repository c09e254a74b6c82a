import { legend, timeChart } from "../charts.js";
import { h, name } from "../dom.js";
import { hours, lasted, percent } from "../format.js";
import { Asked, OWNERS, SPLIT, TIME, figures, filterForm, inTerminal, memoryHours, ofOthers, refused, shortcuts, split, windowOf } from "../past.js";
import { beginOf } from "../period.js";
import { table } from "../table.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../app.js").Parameters} Parameters */
/** @typedef {import("../past.js").Window} Window */

export const title = "Use";
const GROUPINGS = ["user", "project", "class", "gpu", "node", "model", "day", "week"];
const GPU_HOUR_MS = 3_600_000;
const DAY_SECONDS = 86400;
const MAX_DAYS = 100; // the daemon answers for some more days, and for weeks beyond

const asked = new Asked((words, context) => {
  const window = windowOf(words, context);
  const by = GROUPINGS.includes(words.by) ? words.by : GROUPINGS[0];
  const step = window.until - window.since > MAX_DAYS * DAY_SECONDS ? "week" : "day";
  return { window, by, step, months: monthsOf(window, context.now) };
});
export const { watch } = asked;

/**
 * Return this month so far, and as much of the last one.
 * @param {Window} window @param {number} now
 */
function monthsOf(window, now) {
  const begin = beginOf("month", new Date(now * 1000));
  const last = beginOf("month", new Date(+begin - 1));
  const sameDay = new Date(last.getFullYear(), last.getMonth(), new Date(now * 1000).getDate());
  const [start, lastStart] = [+begin / 1000, +last / 1000];
  const today = +beginOf("day", new Date(now * 1000)) / 1000;
  const lastUntil = Math.min(+sameDay / 1000 + now - today, start);
  return { current: { ...window, since: start, until: now }, past: { ...window, since: lastStart, until: lastUntil } };
}

/** @param {any} _state @param {Context} context */
export function view(_state, context) {
  const { asked: found, error } = asked.found;
  return [
    h("h1", null, "Use"),
    shortcuts("use", context),
    filterForm("use", [{ label: "By", name: "by", options: GROUPINGS, usual: GROUPINGS[0] }, ...TIME, ...OWNERS], context),
    found ? [period(found, context), months(found.months, context), waits(found.window, context)] : refused({ message: error ?? "" }),
    ofOthers(context),
    inTerminal("usage", context.parameters, context),
  ];
}

/** @param {Context} context @param {Window} window @param {string} by @returns {UsageResponse & {failure?: Error} | undefined} */
function usage(context, window, by) {
  return context.memo("", "History/Usage", { window, by });
}

/** @param {{window: Window, by: string, step: string}} found @param {Context} context */
function period({ window, by, step }, context) {
  const [sums, course] = [usage(context, window, by), usage(context, window, step)];
  if (!sums || !course) return h("p", { class: "quiet" }, "Loading…");
  const failure = sums.failure ?? course.failure;
  if (failure) return refused(failure);
  const total = /** @type {UsageRow} */ (sums.total);
  const account = /** @type {Account} */ (total.account);
  return [
    figures([
      ["GPU hours held", hours(account.held_gpu_ms)],
      ["used of held", percent(account.use_of_held_ratio) || "-"],
      ["GPU hours idle", hours(account.idle_gpu_ms)],
      ["GPU hours too big", hours(account.too_big_gpu_ms)],
      ["leases", total.leases],
      ["waited together", lasted(sums.waited_ms)],
    ]),
    h("p", null, meanwhile(account, sums)),
    timeChart(courseOf(course.rows, step)),
    h("h2", null, `By ${by}`),
    legend(SPLIT),
    groups(sums.rows, by, context),
  ];
}

/** @param {Account} account @param {UsageResponse} sums */
function meanwhile(account, { waited_requests: requests, waited_ms }) {
  const idle = `${hours(account.idle_gpu_ms)} GPU hours lay idle`;
  if (!requests) return `${idle}, and nobody waited.`;
  return `${idle} while ${requests === 1 ? "1 request" : `${requests} requests`} waited ${lasted(waited_ms)}.`;
}

/** @param {UsageRow[]} rows @param {string} step @returns {import("../charts.js").Chart} */
function courseOf(rows, step) {
  const series = SPLIT.map(({ name, tone, field }) => ({ name, tone, values: rows.map((row) => Number(row.account?.[field] ?? 0)) }));
  return {
    title: `GPU hours held, by ${step}`,
    form: "bars",
    times: rows.map((row) => +new Date(`${row.key}T00:00`) / 1000),
    series,
    unit: GPU_HOUR_MS,
    suffix: "",
    write: (value) => (value === null ? "-" : hours(value)),
    writeTime: (_, index) => (step === "week" ? `week of ${rows[index].key}` : rows[index].key),
  };
}

/** @param {UsageRow[]} rows @param {string} by @param {Context} context */
function groups(rows, by, { draw }) {
  const most = Math.max(...rows.map((row) => Number(row.account?.held_gpu_ms)));
  /** @type {(title: string, field: "held_gpu_ms" | "well_used_gpu_ms" | "too_big_gpu_ms" | "idle_gpu_ms" | "unseen_gpu_ms", wide?: boolean) => import("../table.js").Column<UsageRow>} */
  const amount = (title, field, wide) => ({ title, right: true, wide, cell: (row) => hours(row.account?.[field]), sort: (row) => Number(row.account?.[field]) });
  /** @type {import("../table.js").Column<UsageRow>[]} */
  const columns = [
    { title: by, cell: (row) => name(row.key || "-"), sort: (row) => row.key },
    { title: "leases", right: true, cell: (row) => row.leases, sort: (row) => row.leases },
    amount("GPU hours", "held_gpu_ms"),
    { title: "of them", wide: true, cell: (row) => row.account && split(row.account, most) },
    { title: "use", right: true, cell: (row) => percent(row.account?.use_of_held_ratio) || "-", sort: (row) => row.account?.use_of_held_ratio ?? -1 },
    amount("well used", "well_used_gpu_ms", true),
    amount("too big", "too_big_gpu_ms"),
    amount("idle", "idle_gpu_ms"),
    amount("not seen", "unseen_gpu_ms", true),
    { title: "GiB hours", right: true, wide: true, cell: (row) => memoryHours(row.account?.held_mib_seconds ?? "0"), sort: (row) => Number(row.account?.held_mib_seconds) },
    { title: "memory use", right: true, wide: true, cell: (row) => percent(row.account?.memory_of_held_ratio) || "-", sort: (row) => row.account?.memory_of_held_ratio ?? -1 },
  ];
  return table({ caption: `Use by ${by}`, columns, rows, key: (row) => row.key, changed: draw, empty: "Nothing was held in this time." });
}

// --- month against month

/** @param {{current: Window, past: Window}} windows @param {Context} context */
function months({ current, past }, context) {
  const [now, before] = [usage(context, current, "day"), usage(context, past, "day")];
  if (!now || !before) return null;
  if (now.failure || before.failure) return null;
  return [
    h("h2", null, "This month to date, and the same days of the last month"),
    h("div", { class: "cards" }, h("div", { class: "card" }, timeChart(monthChart(current, now.rows, before.rows))), h("div", { class: "card" }, comparison(now, before))),
  ];
}

/** @param {Window} current @param {UsageRow[]} now @param {UsageRow[]} before @returns {import("../charts.js").Chart} */
function monthChart(current, now, before) {
  const days = Math.max(now.length, before.length);
  const [first, other] = [sumsOf(now, days), sumsOf(before, days)];
  const begin = new Date(current.since * 1000);
  return {
    title: "GPU hours held since the month began",
    form: "lines",
    times: Array.from({ length: days }, (_, day) => +new Date(begin.getFullYear(), begin.getMonth(), day + 1) / 1000),
    series: [{ name: "this month", tone: "used", values: first }, { name: "last month", tone: "past", values: other }],
    unit: GPU_HOUR_MS,
    suffix: "",
    write: (value) => (value === null ? "-" : hours(value)),
    writeTime: (_, day) => `day ${day + 1}`,
  };
}

/** Return the sums of all days up to each. @param {UsageRow[]} rows @param {number} days */
function sumsOf(rows, days) {
  let sum = 0;
  return Array.from({ length: days }, (_, day) => (day < rows.length ? (sum += Number(rows[day].account?.held_gpu_ms ?? 0)) : null));
}

/** @param {UsageResponse} now @param {UsageResponse} before */
function comparison(now, before) {
  const [one, other] = [now, before].map((answer) => ({ account: answer.total?.account, leases: answer.total?.leases ?? 0, waited: Number(answer.waited_ms) }));
  /** @type {[string, (month: typeof one) => string, (month: typeof one) => number][]} */
  const lines = [
    ["GPU hours held", ({ account }) => hours(account?.held_gpu_ms), ({ account }) => Number(account?.held_gpu_ms)],
    ["used of held", ({ account }) => percent(account?.use_of_held_ratio) || "-", () => NaN],
    ["GPU hours idle", ({ account }) => hours(account?.idle_gpu_ms), ({ account }) => Number(account?.idle_gpu_ms)],
    ["GPU hours too big", ({ account }) => hours(account?.too_big_gpu_ms), ({ account }) => Number(account?.too_big_gpu_ms)],
    ["leases", ({ leases }) => String(leases), ({ leases }) => leases],
    ["waited together", ({ waited }) => lasted(waited), ({ waited }) => waited],
  ];
  return table({
    caption: "This month to date, and the same days of the last month",
    rows: lines,
    key: ([title]) => title,
    columns: [
      { title: "figure", cell: ([title]) => title },
      { title: "this month", right: true, cell: ([, write]) => write(one) },
      { title: "last month", right: true, cell: ([, write]) => write(other) },
      { title: "change", right: true, cell: ([, , amount]) => change(amount(one), amount(other)) },
    ],
  });
}

/** @param {number} now @param {number} before */
function change(now, before) {
  if (!before || Number.isNaN(now)) return "-";
  const words = percent(Math.abs(now / before - 1));
  return words === "0%" ? "as before" : `${now > before ? "+" : "−"}${words}`;
}

// --- waiting

/** @param {Window} window @param {Context} context */
function waits(window, context) {
  /** @type {WaitsResponse & {failure?: Error} | undefined} */
  const answer = context.memo("", "History/Waits", { window, by: "class" });
  if (!answer || answer.failure) return null;
  const { total } = answer;
  /** @type {import("../table.js").Column<WaitsRow>[]} */
  const columns = [
    { title: "class", cell: (row) => row.key },
    { title: "requests", right: true, cell: (row) => row.requests },
    { title: "waited", right: true, cell: (row) => row.waited },
    ...["p50", "p90", "p99"].map((part) => ({ title: part, right: true, cell: (/** @type {any} */ row) => lasted(row[`${part}_ms`]) })),
    { title: "longest", right: true, cell: (row) => lasted(row.longest_ms) },
    { title: "together", right: true, cell: (row) => lasted(row.total_ms) },
    { title: "waiting still", right: true, wide: true, cell: (row) => row.waiting },
  ];
  return [
    h("h2", null, "Waiting"),
    total && h("p", null, `${total.waited} of ${total.requests} requests waited, ${lasted(total.total_ms)} together. P50, P90 and P99 are the waits that 50, 90 and 99 of 100 requests did not exceed.`),
    table({ caption: "Waits by class", columns, rows: answer.rows, key: (row) => row.key, empty: "Nobody asked for anything in this time." }),
  ];
}
