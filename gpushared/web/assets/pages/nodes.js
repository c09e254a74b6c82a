import { legend, strip } from "../charts.js";
import { h, name } from "../dom.js";
import { fixed, share, span } from "../format.js";
import { inTerminal } from "../past.js";
import { notices } from "./idle.js";

/** @typedef {import("../app.js").Context} Context */

export const title = "Nodes";
const WHOLE_PERMILLE = 1000;
/** @type {Record<string, {mark: string, class: string, words: string}>} */
const PRESENCES = {
  ready: { mark: "●", class: "good", words: "ready" },
  suspect: { mark: "◐", class: "warn", words: "suspect: silent" },
  unknown: { mark: "✗", class: "bad", words: "unknown: cut off" },
  drained: { mark: "⊘", class: "warn", words: "drained" },
  "never-seen": { mark: "?", class: "bad", words: "never-seen" },
};
/** @type {{name: string, tone: import("../charts.js").Tone}[]} */
const PARTS = [{ name: "leased", tone: "used" }, { name: "free", tone: "unseen" }];

export function watch() {
  return { nodes: ["Jobs/Nodes", {}] };
}

/** @param {{nodes?: NodesResponse}} state @param {Context} context */
export function view({ nodes: answer }, context) {
  if (!answer) return [h("h1", null, "Nodes"), h("p", { class: "quiet" }, "Loading…")];
  const away = answer.nodes.filter((node) => node.presence !== "ready");
  return [
    h("h1", null, answer.pool ? ["Nodes of the pool ", name(answer.pool)] : "This machine is in no pool"),
    notices(answer.notices),
    away.map((node) => h("p", { class: `banner ${presence(node).class}`, role: "status" }, note(node, context.now))),
    h("p", null, summary(answer.nodes)),
    legend(PARTS),
    h("div", { class: "cards" }, answer.nodes.map((node) => card(node, context.now))),
    inTerminal("nodes", {}, { ...context, pool: false }),
  ];
}

/** @param {PoolNode} node */
function presence(node) {
  return PRESENCES[node.presence] ?? { mark: "?", class: "warn", words: node.presence };
}

/** @param {PoolNode[]} nodes */
function summary(nodes) {
  const ready = nodes.filter((node) => node.presence === "ready");
  const gpus = ready.flatMap((node) => node.gpus);
  return `${ready.length} of ${nodes.length} nodes are ready, with ${gpus.length} GPUs: ${free(gpus) || "none"} free.`;
}

/** Return the free part of all GPUs together, and the number of GPUs without any lease. @param {PoolGpu[]} gpus */
export function free(gpus) {
  if (!gpus.length) return "";
  const well = gpus.filter((gpu) => !gpu.trouble);
  const total = well.reduce((sum, gpu) => sum + gpu.free_compute_permille, 0) / WHOLE_PERMILLE;
  const whole = well.filter((gpu) => !gpu.leases && gpu.free_compute_permille === WHOLE_PERMILLE).length;
  return `${fixed(total, 2)} (${whole} whole)`;
}

/** Return `8x H100, 2x L4`. @param {PoolGpu[]} gpus */
function kinds(gpus) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  gpus.forEach((gpu) => counts.set(gpu.name, (counts.get(gpu.name) ?? 0) + 1));
  return [...counts].map(([kind, count]) => `${count}x ${kind}`).join(", ");
}

/** @param {PoolNode} node @param {number} now */
function card(node, now) {
  const { mark, class: tone, words } = presence(node);
  const silent = node.presence !== "ready" && node.presence !== "drained";
  return h(
    "section",
    { class: `card ${silent ? "silent" : ""}`, key: node.name, "aria-label": `node ${node.name}` },
    h("h2", { class: "node-title" }, name(node.name), " ", h("span", { class: tone }, `${mark} ${words}`)),
    h(
      "dl",
      { class: "facts" },
      fact("heard", heard(node, now)),
      fact("GPUs", kinds(node.gpus) || "none known"),
      fact("free", silent ? `${free(node.gpus) || "-"}, as last reported` : free(node.gpus) || "-"),
      fact("leases", `${node.running} running, ${node.waiting} waiting`),
      fact("version", [node.version || "-", node.address ? [" at ", name(node.address)] : null]),
    ),
    h("ul", { class: "gpus" }, node.gpus.map((gpu) => h("li", { key: gpu.id }, gpuLine(gpu)))),
  );
}

/** @param {string} title @param {import("../dom.js").Child} words */
function fact(title, words) {
  return [h("dt", null, title), h("dd", null, words)];
}

/** @param {PoolNode} node @param {number} now */
function heard(node, now) {
  if (!node.heard_at) return "never";
  return `${span(now - node.heard_at)} ago`;
}

/** @param {PoolGpu} gpu */
function gpuLine(gpu) {
  const leased = WHOLE_PERMILLE - gpu.free_compute_permille;
  const parts = [{ ...PARTS[0], amount: leased, text: share(leased) }, { ...PARTS[1], amount: gpu.free_compute_permille, text: share(gpu.free_compute_permille) }];
  return [
    h("span", { class: "quiet" }, `GPU ${gpu.index}`),
    strip(parts, WHOLE_PERMILLE),
    h("span", null, `${gpu.leases} ${gpu.leases === 1 ? "lease" : "leases"}, ${share(gpu.free_compute_permille)} free`),
    gpu.trouble && h("span", { class: "bad" }, `✗ ${gpu.trouble}`),
  ];
}

/** Word the node's trouble, and how certain it is. @param {PoolNode} node @param {number} now */
function note(node, now) {
  if (node.presence === "drained") return ["drained: ", name(node.name), `: ${node.drain_reason} (${node.drained_by})`];
  if (node.presence === "never-seen") return [name(node.name), " has not been heard of since the coordinator started; nothing is known of it"];
  return [
    name(node.name),
    ` is silent for ${span(now - node.silent_since)}: what ran there is believed to run on, and is kept; if it is off for good: `,
    h("code", null, `gpushare node forget ${node.name} --is-off`),
  ];
}
