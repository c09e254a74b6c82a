// Show one GPU: who holds how much of its memory and compute, what is used, and what is free.
import { h, name } from "./dom.js";
import { compute, freeSize, memory, memoryPair, percent, share } from "./format.js";
import { gpuName, hue, leaseLink, leasePath } from "./leases.js";
import { table } from "./table.js";

/** @typedef {{id: string, user: string, held: number, used: number | null, words: string, lease?: Lease}} Part */

const WHOLE = 1000;

/** @param {Gpu} gpu @param {Lease[]} leases all of the answer @param {import("./app.js").Context} context */
export function gpuCard(gpu, leases, context) {
  const mine = leases.filter((lease) => lease.grants.some((grant) => grant.gpu_uuid === gpu.uuid) && lease.state !== "ended");
  const where = gpu.node && context.pool ? `${gpu.node} · ` : "";
  return h(
    "section",
    { class: "card gpu", key: `${gpu.node} ${gpu.uuid}`, "aria-label": `${where}GPU ${gpuName(gpu)}` },
    h("div", { class: "gpu-head" },
      h("h2", null, where && name(gpu.node), where && " · ", `GPU ${gpuName(gpu)}`),
      name(gpu.name, "quiet"),
      h("span", { class: modeClass(gpu) }, gpu.mode)),
    gpu.mode === "mig"
      ? h("p", { class: "quiet" }, "MIG instances of this GPU are leased, each by itself.")
      : h("p", { class: "free" }, "Free: ", h("strong", null, freeSize(gpu))),
    gpu.mode !== "mig" && strips(gpu, mine),
    h("p", { class: "readings quiet" }, readings(gpu)),
    gpu.mode !== "mig" && h("details", null, h("summary", null, `As a table (${mine.length} ${mine.length === 1 ? "lease" : "leases"})`), holders(gpu, mine, context)),
  );
}

/** @param {Gpu} gpu */
function modeClass(gpu) {
  return `tag ${gpu.drained ? "bad" : ""}`;
}

/** @param {Gpu} gpu */
function readings(gpu) {
  return [
    gpu.temperature_celsius !== undefined && `${gpu.temperature_celsius} C`,
    gpu.power_watts !== undefined && `${Math.round(gpu.power_watts)} W`,
    `${memoryPair(gpu.memory_used_bytes, gpu.memory_total_bytes)} used`,
    gpu.sharing !== "none" && `sharing by ${gpu.sharing}`,
  ].filter(Boolean).join(" · ");
}

/** @param {Gpu} gpu @param {Lease[]} leases */
function strips(gpu, leases) {
  const total = Number(gpu.memory_leasable_bytes);
  const stray = Number(gpu.memory_unmanaged_bytes);
  const memoryParts = leases.map((lease) => memoryPart(lease, gpu));
  const computeParts = leases.map((lease) => computePart(lease, gpu)).filter((part) => part.held);
  return [
    strip("Memory", memoryParts, total, stray ? { held: stray, words: `${memory(stray)} without a lease` } : null, memory(gpu.memory_free_bytes)),
    strip("Compute", computeParts, WHOLE, null, share(gpu.compute_free_permille)),
    h("div", { class: "strip-row" },
      h("span", { class: "strip-name" }, "Busy"),
      h("span", { class: "meter", "aria-hidden": "true" }, h("span", { class: "fill", style: { width: `${100 * (gpu.utilization_ratio ?? 0)}%` } })),
      h("span", { class: "meter-words" }, gpu.utilization_ratio === undefined ? "not read" : percent(gpu.utilization_ratio))),
  ];
}

/** @param {Lease} lease @param {Gpu} gpu @returns {Part} */
function memoryPart(lease, gpu) {
  const whole = lease.grants.reduce((sum, grant) => sum + Number(grant.memory_bytes), 0);
  const held = heldBytes(lease, gpu);
  const used = lease.memory_used_bytes === undefined || !whole ? null : Number(lease.memory_used_bytes) / whole;
  const words = lease.grants.length > 1 ? memory(held) : memoryPair(lease.memory_used_bytes, held);
  return { id: lease.id, user: lease.owner, held, used, words, lease };
}

/** @param {Lease} lease @param {Gpu} gpu @returns {Part} */
function computePart(lease, gpu) {
  const grant = grantOn(lease, gpu);
  return { id: lease.id, user: lease.owner, held: grant?.compute_permille ?? 0, used: null, words: computeOf(lease, gpu), lease };
}

/** @param {Lease} lease @param {Gpu} gpu */
function grantOn(lease, gpu) {
  return lease.grants.find((grant) => grant.gpu_uuid === gpu.uuid);
}

/** @param {Lease} lease @param {Gpu} gpu */
function heldBytes(lease, gpu) {
  return Number(grantOn(lease, gpu)?.memory_bytes ?? 0);
}

/** @param {Lease} lease @param {Gpu} gpu */
function computeOf(lease, gpu) {
  const grant = grantOn(lease, gpu);
  return grant ? compute(grant.compute_permille, grant.compute_limit_permille) : "";
}

/**
 * @param {string} title @param {Part[]} parts @param {number} whole
 * @param {{held: number, words: string} | null} stray memory that processes without a lease hold @param {string} free
 */
function strip(title, parts, whole, stray, free) {
  const width = (/** @type {number} */ held) => ({ width: `${whole ? (100 * held) / whole : 0}%` });
  return h("div", { class: "strip-row" },
    h("span", { class: "strip-name" }, title),
    h("ul", { class: "strip-parts", "aria-label": title },
      parts.map((part) =>
        h("li", { key: part.id, class: `part ${hue(part.user)}`, style: width(part.held) },
          h("a", { href: leasePath(part.id), title: `${part.id} of ${part.user}: ${part.words}` },
            h("bdi", null, part.user), h("span", { class: "words" }, ` ${part.words}`)),
          part.used !== null && h("span", { class: "fill", style: { width: `${Math.min(100, 100 * part.used)}%` } }))),
      stray && h("li", { key: "stray", class: "part stray", style: width(stray.held), title: stray.words }, h("span", { class: "words" }, stray.words)),
      h("li", { key: "free", class: "rest" }, h("span", { class: "words" }, `${free} free`))));
}

/** @param {Gpu} gpu @param {Lease[]} leases @param {import("./app.js").Context} context */
function holders(gpu, leases, context) {
  return table({
    caption: `Leases on GPU ${gpuName(gpu)}`,
    rows: leases,
    key: (lease) => lease.id,
    empty: "No lease is here.",
    columns: [
      { title: "lease", cell: (lease) => leaseLink(lease, context) },
      { title: "user", cell: (lease) => name(lease.owner) },
      { title: "compute", right: true, cell: (lease) => computeOf(lease, gpu) },
      { title: "memory held", right: true, cell: (lease) => memory(heldBytes(lease, gpu)) },
      { title: "used", right: true, cell: (lease) => (lease.grants.length > 1 ? `${memory(lease.memory_used_bytes)} on all its GPUs` : memory(lease.memory_used_bytes)) },
    ],
  });
}

export function stripLegend() {
  const item = (/** @type {string} */ kind, /** @type {string} */ words) => h("span", null, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), ` ${words}`);
  return h("p", { class: "keys quiet" }, item("held", "held by a lease"), item("used", "used of it"), item("stray", "used without a lease"), item("none", "free"));
}
