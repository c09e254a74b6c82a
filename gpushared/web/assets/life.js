// Show what a lease used of what it held, over its life.
import { legend, timeChart } from "./charts.js";
import { h } from "./dom.js";
import { dayAndClock, hours, memory, memoryPair, percent } from "./format.js";
import { SPLIT, split } from "./past.js";

const GIB = 2 ** 30;

/**
 * Return the charts of one lease of a report, with what the command line says about them.
 * @param {LeaseReport} report @param {number} now
 */
export function useOverLife(report, now) {
  const { lease, curve, notes } = report;
  if (!lease?.started_at) return h("p", { class: "quiet" }, "It has held nothing yet.");
  const writeTime = (/** @type {number} */ at) => dayAndClock(at, now);
  const times = curve.map((point) => point.at);
  return h(
    "section",
    { class: "life" },
    h("div", { class: "cards" }, memoryCard(report, times, writeTime), computeCard(report, times, writeTime)),
    lease.account && h("p", null, h("strong", null, "GPU hours: "), sentence(lease.account)),
    lease.account && [split(lease.account), legend(SPLIT)],
    notes.map((note) => h("p", { class: "banner" }, note.text, note.mend && !note.text.includes(note.mend) ? [": ", h("code", null, note.mend)] : null)),
  );
}

/** @param {LeaseReport} report @param {number[]} times @param {(at: number) => string} writeTime */
function memoryCard({ lease, curve }, times, writeTime) {
  const held = Number(lease?.held_bytes ?? 0);
  const mean = lease?.account?.memory_of_held_ratio;
  const used = curve.map((point) => (point.memory_ratio === undefined ? null : point.memory_ratio * held));
  const peak = lease?.peak_bytes === undefined ? [] : [{ name: "peak", tone: /** @type {const} */ ("peak"), values: times.map(() => Number(lease.peak_bytes)) }];
  return h(
    "div",
    { class: "card" },
    timeChart({
      title: "Memory",
      form: "lines",
      times,
      series: [{ name: "used", tone: "used", values: used }, { name: "held", tone: "held", values: times.map(() => held) }, ...peak],
      unit: GIB,
      suffix: " GiB",
      write: (value) => memory(value === null ? null : Math.round(value)),
      writeTime,
    }),
    h("p", null, mean === undefined ? "Nobody has seen its memory." : `${percent(mean)} of the held memory was used on average, peak ${memoryPair(lease?.peak_bytes, held)}.`),
  );
}

/** @param {LeaseReport} report @param {number[]} times @param {(at: number) => string} writeTime */
function computeCard({ lease, curve, worst_gpu_ratio: worst }, times, writeTime) {
  const mean = lease?.account?.use_of_held_ratio;
  const most = lease?.use_max_ratio;
  const words = `Kernels ran in ${percent(mean)} of the held time on average${most === undefined ? "" : `, at most ${percent(most)}`}${worst === undefined ? "" : `, the least used GPU ${percent(worst)}`}.`;
  return h(
    "div",
    { class: "card" },
    timeChart({
      title: "Compute",
      form: "lines",
      times,
      series: [
        { name: "used", tone: "used", values: curve.map((point) => point.use_ratio ?? null) },
        { name: "held", tone: "held", values: times.map(() => 1) },
        { name: "at most", tone: "peak", values: curve.map((point) => point.use_max_ratio ?? null) },
      ],
      unit: 0.01,
      suffix: "%",
      write: (value) => percent(value) || "-",
      writeTime,
    }),
    h("p", null, mean === undefined ? "Nobody has seen its use." : words),
  );
}

/** Return the sentence of `gpushare report`. @param {Account} account */
function sentence(account) {
  const parts = SPLIT.map(({ name, field }) => `${hours(account[field])} ${name}`);
  return `${hours(account.held_gpu_ms)} held: ${parts.join(", ")}`;
}
