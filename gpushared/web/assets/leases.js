// Show leases and GPUs in the cells and the words of the command line.
import { h, name } from "./dom.js";
import { MISSING, count, gpuNumber, gpuOf, grantedBytes, grantedShare, leaseState, memory, memoryPair, span, start } from "./format.js";

/** @typedef {import("./app.js").Context} Context */

const HUES = 8;
const LEASE = "l-"; // so ids of leases begin

/** Return the style of a user's colour, the same on all pages. @param {string} user */
export function hue(user) {
  const sum = [...user].reduce((hash, letter) => (hash * 31 + (letter.codePointAt(0) ?? 0)) >>> 0, 7);
  return { "--hue": `var(--hue-${sum % HUES})` };
}

/** Return the path of a lease, or of the job that waits in a lease's place. @param {string} id @param {string} [node] another one */
export function leasePath(id, node) {
  return `${id.startsWith(LEASE) ? "lease" : "job"}/${encodeURIComponent(id)}${node ? `?node=${encodeURIComponent(node)}` : ""}`;
}

/** @param {{id: string, node: string}} lease @param {Context} context */
export function leaseLink({ id, node }, { session }) {
  return h("a", { href: leasePath(id, node === session.node ? "" : node), class: "mono" }, id);
}

/**
 * Return true for a lease of the reader. A pool knows no numbers of users, as those differ from node to node.
 * @param {Lease} lease @param {Context} context
 */
export function isMine({ owner, owner_uid }, { pool, session }) {
  return pool ? owner.split("@")[0] === session.user : owner_uid === String(session.uid);
}

/** Return what is left of a lease's time, which stands still while it is suspended; 0 for a lease without an end. @param {Lease} lease @param {number} now */
export function secondsLeft(lease, now) {
  return lease.left_seconds || (lease.expires_at && lease.state !== "ended" ? lease.expires_at - now : 0);
}

/** Return the cells of a lease as `gpushare ps` has them. @param {Lease} lease @param {number} now */
export function leaseCells(lease, now) {
  const { grants } = lease;
  const left = secondsLeft(lease, now);
  return {
    node: lease.node || MISSING,
    user: lease.owner,
    state: leaseState(lease),
    gpu: grants.map(gpuOf).join(",") || MISSING,
    share: grantedShare(grants) || MISSING,
    memory: grants.length ? memoryPair(lease.memory_used_bytes, grantedBytes(grants)) : MISSING,
    wall: lease.memory_wall || MISSING,
    age: span(now - lease.created_at),
    left: left ? span(left) : MISSING,
    idle: lease.idle_since ? span(now - lease.idle_since) : MISSING,
    name: lease.container_name || MISSING,
    image: lease.image || MISSING,
  };
}

/** Return the cells of a process without a lease. @param {UnmanagedProcess} process @returns {ReturnType<typeof leaseCells>} */
function processCells({ node, user, gpu_index, memory_bytes, command, pid }) {
  const none = MISSING;
  const words = pid ? `${command} (pid ${pid})`.trim() : none;
  return { node: node || none, user: user || none, state: "unmanaged", gpu: gpuNumber(gpu_index), share: none, memory: memory(memory_bytes), wall: "none", age: none, left: none, idle: none, name: words, image: none };
}

/**
 * Return the rows of leases and of processes without one, with what the columns of figures are sorted by.
 * @param {Lease[]} leases @param {UnmanagedProcess[]} unmanaged @param {Context} context
 */
export function holderRows(leases, unmanaged, context) {
  const { now } = context;
  return [
    ...leases.map((lease) => ({
      ...leaseCells(lease, now),
      key: `${lease.node} ${lease.id}`,
      lease: leaseLink(lease, context),
      mine: isMine(lease, context),
      order: { share: lease.grants.reduce((sum, grant) => sum + grant.compute_permille, 0), memory: grantedBytes(lease.grants), age: -lease.created_at, left: secondsLeft(lease, now) || Infinity, idle: -lease.idle_since || -Infinity },
    })),
    ...unmanaged.map((process) => ({
      ...processCells(process),
      key: `${process.node} ${process.pid} ${process.gpu_uuid}`,
      lease: h("strong", { class: "warn" }, "UNMANAGED"),
      mine: false,
      order: { share: 0, memory: Number(process.memory_bytes ?? 0), age: 0, left: Infinity, idle: -Infinity },
    })),
  ];
}

/** @typedef {ReturnType<typeof holderRows>[number]} HolderRow */

/** @param {boolean} pool @returns {import("./table.js").Column<HolderRow>[]} */
export function holderColumns(pool) {
  const words = (/** @type {"node" | "user" | "gpu" | "wall" | "name" | "image"} */ title, wide = false) =>
    ({ title, wide, sort: (/** @type {HolderRow} */ row) => row[title], cell: (/** @type {HolderRow} */ row) => name(row[title]) });
  const figure = (/** @type {keyof HolderRow["order"]} */ title, wide = false) =>
    ({ title, wide, right: true, sort: (/** @type {HolderRow} */ row) => row.order[title], cell: (/** @type {HolderRow} */ row) => row[title] });
  return [
    { title: "lease", cell: (row) => row.lease },
    ...(pool ? [words("node")] : []),
    { ...words("user"), cell: (row) => [name(row.user), row.mine && h("small", null, " you")] },
    { title: "state", sort: (row) => row.state, cell: (row) => stateMark(row.state) },
    words("gpu"), figure("share"), figure("memory"), words("wall", true), figure("age", true), figure("left"), figure("idle"), words("name"), words("image", true),
  ];
}

const MARKS = /** @type {Record<string, [string, string[]]>} */ ({
  good: ["●", ["active", "running", "ready", "succeeded", "finished"]],
  warn: ["◷", ["queued", "held", "suspended", "paused", "requeued", "suspect", "drained"]],
  bad: ["✕", ["failed", "over_limit", "unmanaged", "unknown"]],
  quiet: ["○", []],
});

/** Show a state as a word with a mark. @param {string} words such as `finished(3)` */
export function stateMark(words) {
  const [, word, code] = /^([^(]*)(?:\((.*)\))?/.exec(words) ?? [];
  const kind = Number(code) ? "bad" : (Object.keys(MARKS).find((one) => MARKS[one][1].includes(word)) ?? "quiet");
  return h("span", { class: kind }, h("span", { "aria-hidden": "true" }, `${MARKS[kind][0]} `), words);
}

/** Word the expected start as `gpushare queue` does. @param {Waiting} waiting @param {number} now */
export function startOf(waiting, now) {
  return start(waiting.start_from, waiting.start_to, now);
}

/** @param {Gpu} gpu */
export function gpuName(gpu) {
  return gpu.label || String(gpu.index);
}

/** Word what is wrong, each cause once, as `gpushare gpus` does. @param {ListGpusResponse} answer @param {number} now */
export function healthLines(answer, now) {
  const place = (/** @type {Gpu} */ gpu) => gpuName(gpu) + (gpu.node && ` of ${gpu.node}`);
  /** @type {Map<string, string[]>} */
  const places = new Map();
  for (const gpu of answer.gpus) {
    const told = gpu.drained?.sick && gpu.drained.reason.includes(gpu.trouble);
    if (gpu.trouble && !told) places.set(gpu.trouble, [...(places.get(gpu.trouble) ?? []), place(gpu)]);
  }
  const ofGpus = [...places].map(([trouble, names]) => `GPU${names.length > 1 ? "s" : ""} ${names.join(", ")}: ${trouble}`);
  const drains = answer.gpus.flatMap((gpu) => {
    if (!gpu.drained) return [];
    const { reason, sick, by, since } = gpu.drained;
    const ago = `${span(now - since)} ago`;
    const text = sick ? `unhealthy: GPU ${place(gpu)} ${reason} ${ago}; gpushare undrain ${gpu.index} ends that` : `drained: GPU ${place(gpu)}: ${reason} (${by}, ${ago})`;
    return [{ text, bad: sick }];
  });
  return [
    ...answer.notices.map((text) => ({ text, bad: false })),
    ...[...new Set(answer.troubles), ...ofGpus].map((text) => ({ text: `trouble: ${text}`, bad: true })),
    ...drains,
  ];
}

/** Return the leases that wait, in the order of `gpushare queue`. @param {Lease[]} leases */
export function waitingOf(leases) {
  const place = (/** @type {Lease} */ lease) => lease.waiting?.position ?? 0;
  return leases
    .filter((lease) => lease.waiting)
    .sort((one, other) => (one.node === other.node ? place(one) - place(other) : one.node < other.node ? -1 : 1));
}

/** @param {number} number */
export function waits(number) {
  return `${count(number, "request")} ${number === 1 ? "waits" : "wait"}`;
}
