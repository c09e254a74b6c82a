// Answer first what people come for: is there room now, for what size.
import { h } from "../dom.js";
import { memory, share } from "../format.js";
import { gpuCard, stripLegend } from "../gpu_card.js";
import { gpuName, healthLines, holderColumns, waitingOf } from "../leases.js";
import { table } from "../table.js";
import { waitingCard } from "./queue.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {import("../leases.js").Holder} Holder */

const WHOLE = 1000;
const WAITING_SHOWN = 4;

export const title = "GPUs";

/** @param {import("../app.js").Parameters} _parameters @param {Context} context */
export function watch(_parameters, { pool }) {
  return { gpus: ["Gpus/List", { pool }], leases: ["Leases/List", { pool }] };
}

/** @param {{gpus?: ListGpusResponse, leases?: ListLeasesResponse}} state @param {Context} context */
export function view({ gpus, leases }, context) {
  if (!gpus || !leases) return h("p", { class: "quiet" }, "Loading…");
  const waiting = waitingOf(leases.leases);
  const holders = leases.leases.filter((lease) => !lease.waiting || lease.grants.length);
  return [
    h("h1", null, room(gpus.gpus, context)),
    h("p", { class: "quiet" }, summary(gpus.gpus, holders.length, waiting.length)),
    health(gpus, leases, context.now),
    h("div", { class: "cards" }, gpus.gpus.map((gpu) => gpuCard(gpu, leases.leases, context))),
    stripLegend(),
    h("h2", null, "Who has what"),
    whoHasWhat(holders, leases.unmanaged, context),
    h("h2", null, "Who waits"),
    h("ol", { class: "queue" }, waiting.slice(0, WAITING_SHOWN).map((lease) => waitingCard(lease, context))),
    h("p", { class: "quiet" }, waiting.length ? h("a", { href: "queue" }, `Why, and what would start now, of all ${waiting.length}`) : "Nobody waits."),
  ];
}

/** Say for what size there is room now. @param {Gpu[]} gpus @param {Context} context */
function room(gpus, { pool }) {
  const usable = gpus.filter((gpu) => !gpu.drained && gpu.mode !== "mig");
  const whole = usable.filter((gpu) => !gpu.leases && gpu.compute_free_permille === WHOLE && !Number(gpu.memory_unmanaged_bytes));
  if (whole.length) return `Free now: ${whole.length} whole ${whole.length === 1 ? "GPU" : "GPUs"}, ${memory(whole[0].memory_free_bytes)} each`;
  const best = usable
    .filter((gpu) => gpu.compute_free_permille && Number(gpu.memory_free_bytes))
    .sort((one, other) => other.compute_free_permille - one.compute_free_permille || Number(other.memory_free_bytes) - Number(one.memory_free_bytes))[0];
  if (!best) return "No GPU has room now";
  return `Free now: up to ${share(best.compute_free_permille)} with ${memory(best.memory_free_bytes)} on GPU ${gpuName(best)}${pool && best.node ? ` of ${best.node}` : ""}`;
}

/** @param {Gpu[]} gpus @param {number} running @param {number} waiting */
function summary(gpus, running, waiting) {
  const count = (/** @type {number} */ number, /** @type {string} */ word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  return `${count(gpus.filter((gpu) => !gpu.parent_uuid).length, "GPU")}, ${count(running, "lease")}, ${count(waiting, "request")} ${waiting === 1 ? "waits" : "wait"}.`;
}

/** @param {ListGpusResponse} gpus @param {ListLeasesResponse} leases @param {number} now */
function health(gpus, leases, now) {
  const lines = new Map([...(leases.notices ?? []).map((text) => ({ text, bad: false })), ...healthLines(gpus, now)].map((line) => [line.text, line]));
  return h("div", { "aria-live": "polite" }, [...lines.values()].map(({ text, bad }) =>
    h("p", { class: bad ? "banner bad" : "banner", key: text.replace(/\d+[smhd]/g, "") }, h("span", { "aria-hidden": "true" }, bad ? "✕ " : "▲ "), text)));
}

/** @param {Lease[]} leases @param {UnmanagedProcess[]} unmanaged @param {Context} context */
function whoHasWhat(leases, unmanaged, context) {
  /** @type {Holder[]} */
  const rows = [...leases.map((lease) => ({ lease })), ...unmanaged.map((process) => ({ process }))];
  return table({
    caption: "Who has what",
    rows,
    key: (row) => ("lease" in row ? row.lease.id : `${row.process.node} ${row.process.pid} ${row.process.gpu_uuid}`),
    empty: "Nobody has a lease.",
    columns: holderColumns(context),
    changed: context.draw,
    rowClass: (row) => ("lease" in row && row.lease.owner_uid === String(context.session.uid) ? "mine" : ""),
  });
}
