// Show what a lease used of what it held, over its life.
import { legend, timeChart } from "./charts.js";
import { h } from "./dom.js";
import { dayAndClock, hours, memory, memoryPair, percent } from "./format.js";
import { SPLIT, split } from "./past.js";

const GIB = 2 ** 30;
const PERCENT = 0.01;

/** Show the charts with what the command line says about them. @param {LeaseReport} report */
export function useOverLife(report) {
  const { lease } = report;
  const account = lease?.account;
  if (!lease?.started_at || !account) return h("p", { class: "quiet" }, "It has held nothing yet.");
  const { use_of_held_ratio: use, memory_of_held_ratio: memoryUse } = account;
  const [memoryChart, computeChart] = chartsOf(report).map(timeChart);
  return [
    memoryChart,
    h("p", null, memoryUse === undefined ? "Nobody has seen its memory." : `${percent(memoryUse)} of the held memory was used on average, peak ${memoryPair(lease.peak_bytes, lease.held_bytes)}.`),
    computeChart,
    h("p", null, use === undefined ? "Nobody has seen its use." : `Kernels ran in ${percent(use)} of the held time on average${lease.use_max_ratio === undefined ? "" : `, at most ${percent(lease.use_max_ratio)}`}.`),
    h("p", null, h("strong", null, "GPU hours: "), `${hours(account.held_gpu_ms)} held: ${SPLIT.map(({ name, field }) => `${hours(account[field])} ${name}`).join(", ")}`),
    split(account),
    legend(SPLIT),
  ];
}

/** @param {LeaseReport} report @returns {Chart[]} */
export function chartsOf({ lease, curve }) {
  const held = Number(lease?.held_bytes ?? 0);
  const times = curve.map((point) => point.at);
  const always = (/** @type {any} */ value) => times.map(() => (value === undefined ? null : Number(value)));
  const common = { form: /** @type {const} */ ("lines"), times, writeTime: (/** @type {number} */ at) => dayAndClock(at, Date.now() / 1000) };
  return [
    {
      ...common,
      title: "Memory",
      series: [
        { name: "used", tone: "used", values: curve.map((point) => (point.memory_ratio === undefined ? null : point.memory_ratio * held)) },
        { name: "held", tone: "held", values: always(held) },
        { name: "peak", tone: "peak", values: always(lease?.peak_bytes) },
      ],
      unit: GIB,
      suffix: " GiB",
      write: (value) => memory(value === null ? null : Math.round(value)),
    },
    {
      ...common,
      title: "Compute",
      series: [
        { name: "used", tone: "used", values: curve.map((point) => point.use_ratio ?? null) },
        { name: "held time", tone: "held", values: always(1) },
        { name: "at most", tone: "peak", values: curve.map((point) => point.use_max_ratio ?? null) },
      ],
      unit: PERCENT,
      suffix: "%",
      write: percent,
    },
  ];
}
