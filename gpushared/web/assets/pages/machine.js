// Answer first what people come for: is there room now, for what size.
import { h } from "../dom.js";
import { count, memory, share } from "../format.js";
import { gpuCard, stripLegend } from "../gpu_card.js";
import { gpuName, healthLines, holderColumns, holderRows, waitingOf, waits } from "../leases.js";
import { table } from "../table.js";
import { waitingCard } from "./queue.js";

/** @typedef {import("../app.js").Context} Context */

const WHOLE = 1000;
const WAITING_SHOWN = 4;
const MODES = ["free", "shared", "exclusive"]; // of GPUs that take leases

export const title = "GPUs";

/** @param {import("../app.js").Parameters} _parameters @param {Context} context */
export function watch(_parameters, { pool }) {
  return { gpus: ["Gpus/List", { pool }], leases: ["Leases/List", { pool }] };
}

/** @param {{gpus?: ListGpusResponse, leases?: ListLeasesResponse}} state @param {Context} context */
export function view({ gpus, leases }, context) {
  if (!gpus || !leases) return h("p", { class: "quiet" }, "Loading…");
  const waiting = waitingOf(leases.leases);
  const holders = leases.leases.filter((lease) => !lease.waiting);
  return [
    h("h1", null, room(gpus.gpus)),
    h("p", { class: "quiet" }, `${count(gpus.gpus.filter((gpu) => !gpu.parent_uuid).length, "GPU")}, ${count(holders.length, "lease")}, ${waits(waiting.length)}.`),
    h("div", { "aria-live": "polite" }, health(gpus, leases, context.now)),
    h("div", { class: "cards" }, gpus.gpus.map((gpu) => gpuCard(gpu, leases.leases, context))),
    stripLegend(),
    h("h2", null, "Who has what"),
    table({
      caption: "Who has what",
      rows: holderRows(holders, leases.unmanaged, context),
      key: (row) => row.key,
      empty: "Nobody has a lease.",
      columns: holderColumns(context.pool),
      changed: context.draw,
      rowClass: (row) => (row.mine ? "mine" : ""),
    }),
    h("h2", null, "Who waits"),
    h("ol", { class: "queue" }, waiting.slice(0, WAITING_SHOWN).map((lease) => waitingCard(lease, context))),
    h("p", { class: "quiet" }, waiting.length ? h("a", { href: "queue" }, `Why, and what would start now, of all ${waiting.length}`) : "Nobody waits."),
  ];
}

/** Say for what size there is room now. @param {Gpu[]} gpus */
function room(gpus) {
  const usable = gpus.filter((gpu) => MODES.includes(gpu.mode) && gpu.compute_free_permille && Number(gpu.memory_free_bytes));
  const whole = usable.filter((gpu) => !gpu.leases && gpu.compute_free_permille === WHOLE && !Number(gpu.memory_unmanaged_bytes));
  if (whole.length) return `Free now: ${count(whole.length, "whole GPU")}, ${memory(whole[0].memory_free_bytes)}${whole.length > 1 ? " each" : ""}`;
  const [best] = usable.sort((one, other) => other.compute_free_permille - one.compute_free_permille || Number(other.memory_free_bytes) - Number(one.memory_free_bytes));
  if (!best) return "No GPU has room now";
  return `Free now: up to ${share(best.compute_free_permille)} with ${memory(best.memory_free_bytes)} on GPU ${gpuName(best)}${best.node && ` of ${best.node}`}`;
}

/** @param {ListGpusResponse} gpus @param {ListLeasesResponse} leases @param {number} now */
function health(gpus, leases, now) {
  const lines = [...leases.notices.map((text) => ({ text, bad: false })), ...healthLines(gpus, now)];
  return [...new Map(lines.map((line) => [line.text, line])).values()].map(({ text, bad }) =>
    h("p", { class: bad ? "banner bad" : "banner" }, h("span", { "aria-hidden": "true" }, bad ? "✕ " : "▲ "), text));
}
