// Show leases and GPUs in the cells and the words of the command line.
import { h, name } from "./dom.js";
import { MISSING, gpuOf, grantedBytes, grantedShare, leaseState, memory, memoryPair, span, start } from "./format.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./dom.js").Child} Child */
/** @typedef {{lease: Lease} | {process: UnmanagedProcess}} Holder */

const HUES = 8;
const LEASE = "l-"; // so ids of leases begin

/** Return the same colour for a user on all pages. @param {string} user */
export function hue(user) {
  const sum = [...user].reduce((hash, letter) => (hash * 31 + (letter.codePointAt(0) ?? 0)) >>> 0, 7);
  return `hue-${sum % HUES}`;
}

/** @param {string} text */
export function or(text) {
  return text || MISSING;
}

/** Link a lease, or the job that waits in a lease's place in the pool. @param {Lease} lease @param {Context} context */
export function leaseLink(lease, { session }) {
  const away = lease.node && lease.node !== session.node;
  return h("a", { href: leasePath(lease.id) + (away ? `?node=${encodeURIComponent(lease.node)}` : ""), class: "mono" }, lease.id);
}

/** @param {string} id */
export function leasePath(id) {
  return `${id.startsWith(LEASE) ? "lease" : "job"}/${encodeURIComponent(id)}`;
}

/** Return the cells of a lease as `gpushare ps` has them. @param {Lease} lease @param {number} now */
export function leaseCells(lease, now) {
  const { grants } = lease;
  return {
    state: leaseState(lease),
    gpu: or(grants.map(gpuOf).join(",")),
    share: or(grantedShare(grants)),
    memory: grants.length ? memoryPair(lease.memory_used_bytes, grantedBytes(grants)) : MISSING,
    wall: or(lease.memory_wall),
    age: span(now - lease.created_at),
    left: lease.expires_at && lease.state !== "ended" ? span(lease.expires_at - now) : MISSING,
    idle: lease.idle_since ? span(now - lease.idle_since) : MISSING,
  };
}

/** Return the columns of leases and of processes without one. @param {Context} context */
export function holderColumns(context) {
  const { now, pool, session } = context;
  const cell = (/** @type {keyof ReturnType<typeof leaseCells>} */ key, /** @type {(p: UnmanagedProcess) => string} */ other = () => MISSING) =>
    (/** @type {Holder} */ holder) => ("lease" in holder ? leaseCells(holder.lease, now)[key] : other(holder.process));
  const of = (/** @type {Holder} */ holder) => ("lease" in holder ? holder.lease : null);
  const user = (/** @type {Holder} */ holder) => ("lease" in holder ? holder.lease.owner : holder.process.user);
  const nodeOf = (/** @type {Holder} */ holder) => ("lease" in holder ? holder.lease.node : holder.process.node);
  return [
    { title: "lease", sort: (/** @type {Holder} */ one) => of(one)?.id ?? "", cell: (/** @type {Holder} */ one) => ("lease" in one ? leaseLink(one.lease, context) : h("strong", { class: "warn" }, "UNMANAGED")) },
    ...(pool ? [{ title: "node", sort: nodeOf, cell: (/** @type {Holder} */ one) => name(or(nodeOf(one))) }] : []),
    { title: "user", sort: user, cell: (/** @type {Holder} */ one) => [name(or(user(one))), of(one)?.owner_uid === String(session.uid) && h("small", null, " you")] },
    { title: "state", sort: cell("state"), cell: (/** @type {Holder} */ one) => ("lease" in one ? stateMark(leaseState(one.lease)) : "unmanaged") },
    { title: "gpu", sort: cell("gpu"), cell: cell("gpu", (process) => String(process.gpu_index)) },
    { title: "share", right: true, sort: (/** @type {Holder} */ one) => of(one)?.grants.reduce((sum, grant) => sum + grant.compute_permille, 0) ?? 0, cell: cell("share") },
    { title: "memory", right: true, sort: (/** @type {Holder} */ one) => ("lease" in one ? grantedBytes(one.lease.grants) : Number(one.process.memory_bytes ?? 0)), cell: cell("memory", (process) => memory(process.memory_bytes)) },
    { title: "wall", wide: true, cell: cell("wall", () => "none") },
    { title: "age", right: true, wide: true, sort: (/** @type {Holder} */ one) => -(of(one)?.created_at ?? 0), cell: cell("age") },
    { title: "left", right: true, sort: (/** @type {Holder} */ one) => of(one)?.expires_at || Infinity, cell: cell("left") },
    { title: "idle", right: true, sort: (/** @type {Holder} */ one) => -(of(one)?.idle_since || Infinity), cell: cell("idle") },
    { title: "name", sort: (/** @type {Holder} */ one) => of(one)?.container_name ?? "", cell: (/** @type {Holder} */ one) => name(or("lease" in one ? one.lease.container_name : processName(one.process))) },
    { title: "image", wide: true, cell: (/** @type {Holder} */ one) => name(or(of(one)?.image ?? "")) },
  ];
}

/** @param {UnmanagedProcess} process */
function processName(process) {
  return process.pid ? `${process.command} (pid ${process.pid})`.trim() : "";
}

const MARKS = /** @type {Record<string, [string, string]>} */ ({
  active: ["●", "good"], running: ["●", "good"], ready: ["●", "good"], succeeded: ["✓", "good"], finished: ["✓", "good"],
  queued: ["◷", "warn"], held: ["◷", "warn"], suspended: ["‖", "warn"], paused: ["‖", "warn"], failed: ["✕", "bad"], over_limit: ["✕", "bad"],
});

/** Show a state as a word with a mark. @param {string} words such as `finished(3)` */
export function stateMark(words) {
  const failed = /^finished\((?!0\))/.test(words);
  const [mark, kind] = failed ? MARKS.failed : (MARKS[words.replace(/\(.*/, "")] ?? ["○", "quiet"]);
  return h("span", { class: kind }, h("span", { "aria-hidden": "true" }, `${mark} `), words);
}

/** Word the expected start as `gpushare queue` does. @param {Waiting} waiting @param {number} now */
export function startOf(waiting, now) {
  return start(waiting.start_from, waiting.start_to, now);
}

/** @param {Gpu} gpu */
export function gpuName(gpu) {
  return gpu.label || String(gpu.index);
}

/** @param {Gpu} gpu */
function gpuPlace(gpu) {
  return gpu.node ? `${gpuName(gpu)} of ${gpu.node}` : gpuName(gpu);
}

/** Word what is wrong, each cause once, as `gpushare gpus` does. @param {ListGpusResponse} answer @param {number} now */
export function healthLines(answer, now) {
  /** @type {Map<string, string[]>} */
  const places = new Map();
  for (const gpu of answer.gpus) {
    const told = gpu.drained?.sick && gpu.drained.reason.includes(gpu.trouble);
    if (gpu.trouble && !told) places.set(gpu.trouble, [...(places.get(gpu.trouble) ?? []), gpuPlace(gpu)]);
  }
  const ofGpus = [...places].map(([trouble, names]) => `GPU${names.length > 1 ? "s" : ""} ${names.join(", ")}: ${trouble}`);
  return [
    ...(answer.notices ?? []).map((text) => ({ text, bad: false })),
    ...[...new Set(answer.troubles ?? []), ...ofGpus].map((text) => ({ text: `trouble: ${text}`, bad: true })),
    ...answer.gpus.flatMap((gpu) => (gpu.drained ? [{ text: drainLine(gpu, gpu.drained, now), bad: gpu.drained.sick }] : [])),
  ];
}

/** @param {Gpu} gpu @param {Drained} drained @param {number} now */
function drainLine(gpu, drained, now) {
  const since = `${span(now - drained.since)} ago`;
  if (drained.sick) return `unhealthy: GPU ${gpuPlace(gpu)} ${drained.reason} ${since}; gpushare undrain ${gpu.index} ends that`;
  return `drained: GPU ${gpuPlace(gpu)}: ${drained.reason} (${drained.by}, ${since})`;
}

/** @param {Lease[]} leases @returns {Lease[]} those that wait, in the order of `gpushare queue` */
export function waitingOf(leases) {
  const order = (/** @type {Lease} */ one) => one.waiting?.position ?? 0;
  return leases
    .filter((lease) => lease.waiting)
    .sort((one, other) => (one.node === other.node ? order(one) - order(other) : one.node < other.node ? -1 : 1));
}

