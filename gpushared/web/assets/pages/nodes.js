// Show the machines of the pool, what is known of each, and since when, as `gpushare nodes` does.
import { legend, strip } from "../charts.js";
import { facts, h, name } from "../dom.js";
import { count, fixed, share, span } from "../format.js";
import { inTerminal } from "../past.js";

export const title = "Nodes";
const WHOLE_PERMILLE = 1000;
/** @type {Record<string, [string, string]>} */
const PRESENCES = { ready: ["● ready", "good"], suspect: ["◐ suspect: silent", "warn"], unknown: ["✗ unknown: cut off", "bad"], drained: ["⊘ drained", "warn"], "never-seen": ["? never-seen", "bad"] };
/** @type {{name: string, tone: Tone}[]} */
const PARTS = [{ name: "leased", tone: "used" }, { name: "free", tone: "unseen" }];

export const watch = () => ({ nodes: ["Jobs/Nodes", {}] });

/** @param {{nodes?: NodesResponse}} state @param {Context} context */
export function view({ nodes: answer }, { now }) {
  if (!answer) return [h("h1", null, "Nodes"), h("p", { class: "quiet" }, "Loading…")];
  const { nodes, pool, notices } = answer;
  const ready = nodes.filter((node) => node.presence === "ready");
  const gpus = ready.flatMap((node) => node.gpus);
  return [
    h("h1", null, pool ? ["Nodes of the pool ", name(pool)] : "This machine is in no pool"),
    notices.map((notice) => h("p", { class: "banner" }, notice)),
    nodes.map((node) => node.presence !== "ready" && h("p", { class: `banner ${presence(node)[1]}`, role: "status" }, note(node, now))),
    h("p", null, `${ready.length} of ${nodes.length} nodes are ready, with ${count(gpus.length, "GPU")}: ${free(gpus) || "none"} free.`),
    legend(PARTS),
    h("div", { class: "cards" }, nodes.map((node) => card(node, now))),
    inTerminal("nodes", {}),
  ];
}

/** @param {PoolNode} node */
function presence({ presence }) {
  return PRESENCES[presence] ?? [presence, "warn"];
}

/** Return the free part of all GPUs together, and the number of GPUs without any lease. @param {PoolGpu[]} gpus */
function free(gpus) {
  if (!gpus.length) return "";
  const well = gpus.filter((gpu) => !gpu.trouble);
  const total = well.reduce((sum, gpu) => sum + gpu.free_compute_permille, 0) / WHOLE_PERMILLE;
  const whole = well.filter((gpu) => !gpu.leases && gpu.free_compute_permille === WHOLE_PERMILLE).length;
  return `${fixed(total, 2)} (${whole} whole)`;
}

/** Return `8x H100, 2x L4`. @param {PoolGpu[]} gpus */
function kinds(gpus) {
  return [...new Set(gpus.map((gpu) => gpu.name))].map((kind) => `${gpus.filter((gpu) => gpu.name === kind).length}x ${kind}`).join(", ");
}

/** @param {PoolNode} node @param {number} now */
function card(node, now) {
  const [words, tone] = presence(node);
  const isSilent = node.silent_since > 0 || node.presence === "never-seen";
  return h("section", { class: `card ${isSilent ? "silent" : ""}`, key: node.name, "aria-label": `node ${node.name}` },
    h("h2", { class: "node-title" }, name(node.name), h("span", { class: tone }, words)),
    facts([
      ["heard", node.heard_at ? `${span(now - node.heard_at)} ago` : "never"],
      ["GPUs", kinds(node.gpus) || "none known"],
      ["free", (free(node.gpus) || "-") + (isSilent ? ", as last reported" : "")],
      ["leases", `${node.running} running, ${node.waiting} waiting`],
      ["version", [node.version || "-", node.address && [" at ", name(node.address)]]],
    ]),
    h("ul", { class: "gpus" }, node.gpus.map((gpu) => h("li", { key: gpu.id }, gpuLine(gpu)))));
}

/** @param {PoolGpu} gpu */
function gpuLine({ index, leases, trouble, free_compute_permille: rest }) {
  const amounts = [WHOLE_PERMILLE - rest, rest];
  return [
    h("span", { class: "quiet" }, `GPU ${index}`),
    strip(PARTS.map((part, place) => ({ ...part, amount: amounts[place], text: share(amounts[place]) })), WHOLE_PERMILLE),
    h("span", null, `${leases} ${leases === 1 ? "lease" : "leases"}, ${share(rest)} free`),
    trouble && h("span", { class: "bad" }, `✗ ${trouble}`),
  ];
}

/** Word the node's trouble, and how certain it is. @param {PoolNode} node @param {number} now */
function note(node, now) {
  if (node.presence === "drained") return ["drained: ", name(node.name), `: ${node.drain_reason} (${node.drained_by})`];
  if (!node.silent_since) return [name(node.name), " has not been heard of since its coordinator leads: what ran there is believed to run on, and what is free there is not known"];
  return [name(node.name), ` is silent for ${span(now - node.silent_since)}: what ran there is believed to run on, and is kept; if it is off for good: `,
    h("code", null, `gpushare node forget ${node.name} --is-off`)];
}
