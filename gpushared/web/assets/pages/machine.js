// Answer first what people come for: is there room now, for what size. Then show each GPU: who holds how much of its
// memory and compute, what is used, and what is free.
import { h, name } from "../dom.js";
import { compute, count, freeSize, memory, memoryPair, percent, share } from "../format.js";
import { gpuName, healthLines, holderColumns, holderRows, hue, leaseLink, leasePath, waitingOf, waits } from "../leases.js";
import { table } from "../table.js";
import { waitingCard } from "./queue.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {{key: string, user?: string, path?: string, size: number, used?: number, words: string}} Part */
/** @typedef {{lease: Lease, grant: Grant}} Holding */

const WHOLE = 1000;
const UNHEARD = "unknown"; // the mode of the GPUs of a node that is silent
const WAITING_SHOWN = 4;
const MODES = ["free", "shared", "exclusive"]; // of GPUs that take leases
const NO_LEASES = ["drained", "unhealthy"];

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
  if (whole.length) {
    const sizes = whole.map((gpu) => Number(gpu.memory_free_bytes)).sort((one, other) => one - other);
    const [least, most] = [sizes[0], sizes[sizes.length - 1]].map(memory);
    return `Free now: ${count(whole.length, "whole GPU")}, ${least === most ? least : `${least} to ${most}`}${whole.length > 1 ? " each" : ""}`;
  }
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

/** @param {Gpu} gpu @param {Lease[]} leases all of the answer @param {Context} context */
function gpuCard(gpu, leases, context) {
  const holdings = leases.flatMap((lease) => lease.grants.filter((grant) => grant.gpu_uuid === gpu.uuid).map((grant) => ({ lease, grant })));
  const where = context.pool && gpu.node ? `${gpu.node} · ` : "";
  const split = gpu.mode === "mig";
  const isUnheard = gpu.mode === UNHEARD;
  return h("section", { class: "card", key: `${gpu.node} ${gpu.uuid}`, "aria-label": `${where}GPU ${gpuName(gpu)}` },
    h("div", { class: "head" },
      h("h2", null, h("bdi", null, where), `GPU ${gpuName(gpu)}`),
      name(gpu.name, "quiet"),
      h("span", { class: gpu.drained || isUnheard ? "tag bad" : "tag" }, gpu.mode)),
    split ? h("p", { class: "quiet" }, "Its MIG instances are leased, each by itself.") : h("p", { class: "free" }, isUnheard ? "When last heard of, free: " : "Free: ", h("strong", null, NO_LEASES.includes(gpu.mode) ? "-" : freeSize(gpu))),
    !split && strips(gpu, holdings),
    h("p", { class: "quiet" }, readings(gpu)),
    !split && h("details", null, h("summary", null, "As a table"), holders(gpu, holdings, context)));
}

/** @param {Gpu} gpu */
function readings({ temperature_celsius, power_watts, memory_used_bytes, memory_total_bytes, sharing }) {
  return [
    temperature_celsius !== undefined && `${temperature_celsius} C`,
    power_watts !== undefined && `${Math.round(power_watts)} W`,
    `${memoryPair(memory_used_bytes, memory_total_bytes)} used`,
    sharing && sharing !== "none" && `sharing by ${sharing}`,
  ].filter(Boolean).join(" · ");
}

/** @param {Gpu} gpu @param {Holding[]} holdings */
function strips(gpu, holdings) {
  const { memory_unmanaged_bytes: stray, utilization_ratio: busy } = gpu;
  const memoryParts = [...holdings.map(memoryPart), ...(Number(stray) ? [{ key: "stray", size: Number(stray), words: `${memory(stray)} without a lease` }] : [])];
  const computeParts = holdings.map(({ lease, grant }) => ({ ...part(lease), size: grant.compute_permille, words: computeOf(grant) }));
  return [
    strip("Memory", memoryParts, Number(gpu.memory_leasable_bytes), memory(gpu.memory_free_bytes)),
    strip("Compute", computeParts, WHOLE, share(gpu.compute_free_permille)),
    h("div", { class: "strip-row" },
      h("span", { class: "quiet" }, "Busy"),
      h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: "fill", style: { width: `${100 * (busy ?? 0)}%` } })),
      busy === undefined ? "not read" : percent(busy)),
  ];
}

/** @param {Lease} lease */
function part({ id, owner, node }) {
  return { key: id, user: owner, path: leasePath(id, node) };
}

/** @param {Holding} holding @returns {Part} */
function memoryPart({ lease, grant }) {
  const { grants, memory_used_bytes: used } = lease;
  const held = grants.reduce((sum, one) => sum + Number(one.memory_bytes), 0);
  // Of several GPUs only the use of all is known.
  const words = grants.length > 1 ? memory(grant.memory_bytes) : memoryPair(used, grant.memory_bytes);
  return { ...part(lease), size: Number(grant.memory_bytes), used: used === undefined ? 0 : Math.min(1, Number(used) / held), words };
}

/** @param {Grant} grant */
function computeOf(grant) {
  return compute(grant.compute_permille, grant.compute_limit_permille);
}

/** @param {string} title @param {Part[]} parts @param {number} whole @param {string} free */
function strip(title, parts, whole, free) {
  const words = (/** @type {string} */ text) => h("span", null, ` ${text}`);
  return h("div", { class: "strip-row" },
    h("span", { class: "quiet" }, title),
    h("ul", { class: "parts", "aria-label": title },
      parts.filter((one) => one.size).map(({ key, user, path, size, used, words: text }) =>
        h("li", { key, class: user === undefined ? "part stray" : "part", style: { width: `${(100 * size) / whole}%`, ...(user && hue(user)) }, title: `${user ?? ""} ${text}` },
          path ? h("a", { href: path }, h("bdi", null, user), words(text)) : words(text),
          used !== undefined && h("span", { class: "fill", style: { width: `${100 * used}%` } }))),
      h("li", { key: "free", class: "rest" }, words(`${free} free`))));
}

/** @param {Gpu} gpu @param {Holding[]} holdings @param {Context} context */
function holders(gpu, holdings, context) {
  return table({
    caption: `Leases on GPU ${gpuName(gpu)}${gpu.node && ` of ${gpu.node}`}`,
    rows: holdings,
    key: ({ lease }) => lease.id,
    empty: "No lease is here.",
    columns: [
      { title: "lease", cell: ({ lease }) => leaseLink(lease, context) },
      { title: "user", cell: ({ lease }) => name(lease.owner) },
      { title: "compute", right: true, cell: ({ grant }) => computeOf(grant) },
      { title: "memory held", right: true, cell: ({ grant }) => memory(grant.memory_bytes) },
      { title: "used", right: true, cell: ({ lease }) => memory(lease.memory_used_bytes) + (lease.grants.length > 1 ? " on all its GPUs" : "") },
    ],
  });
}

function stripLegend() {
  const item = (/** @type {string} */ kind, /** @type {string} */ words) => h("span", null, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${words}`);
  return h("p", { class: "keys quiet" }, item("part", "held by a lease"), item("used", "used of it"), item("part stray", "used without a lease"), item("", "free"));
}
