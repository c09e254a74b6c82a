// Show the leases and the jobs that are over, as `gpushare history` does.
import { legend } from "../charts.js";
import { h } from "../dom.js";
import { dayAndClock, hours, lasted, memoryPair, percent } from "../format.js";
import { stateMark } from "../leases.js";
import { Asked, OWNERS, SPLIT, TIME, address, filterForm, inTerminal, ofOthers, shortcuts, split, windowOf } from "../past.js";
import { figures, names, table } from "../table.js";

/** @typedef {Partial<PastLease> & Partial<PastJob> & {id: string, owner: string, outcome: string, project: string, class: string}} Past */

export const title = "History";
const LIMIT = 50;
const MAX_LIMIT = 1000;
const OUTCOMES = ["finished", "stopped", "expired", "never_claimed", "over_limit", "preempted", "idle", "failed"];
const JOB_OUTCOMES = ["succeeded", "failed", "cancelled"];
const KINDS = ["leases", "jobs"];

const asked = new Asked((words, context) => {
  const ofJobs = words.kind === "jobs";
  const limit = Math.min(MAX_LIMIT, Math.max(1, Math.trunc(Number(words.limit)) || LIMIT));
  const window = windowOf(words, context);
  // A job is meant whenever it ran.
  if (words.job && !words.since) window.since = 0;
  return { ofJobs, limit, request: { window, outcome: words.outcome, limit, job: words.job } };
});
export const { watch } = asked;

/** @param {any} _ @param {Context} context */
export function view(_, context) {
  const { parameters, pool } = context;
  const ofJobs = parameters.kind === "jobs";
  const filters = [{ label: "Of", name: "kind", options: KINDS, usual: KINDS[0] }, ...TIME, ...OWNERS,
    { label: "Outcome", name: "outcome", options: ofJobs ? JOB_OUTCOMES : OUTCOMES }, { label: "Job", name: "job" }];
  return [
    h("h1", null, "History"),
    shortcuts("history", context),
    filterForm("history", filters, context),
    asked.show(context, ({ ofJobs, request }) => [[ofJobs ? "History/Jobs" : "History/Ended", request]], ({ limit }, answer) => list(answer, limit, context)),
    ofOthers(context),
    inTerminal(ofJobs ? "history jobs" : "history", { ...parameters, kind: "", job: ofJobs ? "" : parameters.job }, pool),
  ];
}

/** @param {{leases?: PastLease[], jobs?: PastJob[], more: boolean}} answer @param {number} limit @param {Context} context */
function list({ leases, jobs, more }, limit, context) {
  const next = Math.min(MAX_LIMIT, 10 * limit);
  const kind = jobs ? "job" : "lease";
  return [
    leases && legend(SPLIT),
    table({ caption: `The ${kind}s that are over`, columns: columns(kind, context), rows: /** @type {Past[]} */ (leases ?? jobs), key: (one) => `${one.node} ${one.id}`,
      changed: context.draw, empty: `No ${kind} ended in this time.` }),
    more && h("p", null, "There are more: ", next > limit
      ? h("a", { href: address("history", { ...context.parameters, limit: String(next) }) }, `show ${next}`)
      : ["an earlier end shows them, and ", h("code", null, "gpushare history export"), " all."]),
  ];
}

/** @param {"lease" | "job"} kind @param {Context} context @returns {Column<Past>[]} */
function columns(kind, { now, pool }) {
  const ofJobs = kind === "job";
  return [
    { title: kind, cell: (one) => h("a", { href: `${kind}/${encodeURIComponent(one.id)}${pool && one.node ? `?node=${encodeURIComponent(one.node)}` : ""}`, class: "mono" }, one.id) },
    names("user", (one) => one.owner),
    { title: "outcome", cell: (one) => h("span", { title: one.outcome_text || null }, stateMark(one.outcome || "not over")), sort: (one) => one.outcome },
    figures("exit", (one) => one.exit_code),
    ...(pool || ofJobs ? [names("node", (/** @type {Past} */ one) => one.node ?? one.nodes?.join(","))] : []),
    ...(ofJobs ? [] : [names("gpu", (/** @type {Past} */ one) => one.gpu_labels?.join(","))]),
    figures("waited", (one) => one.waited_ms, lasted),
    figures("ran", ranMs, (ms) => (ms === null ? "" : lasted(ms))),
    ...(ofJobs ? [figures("attempts", (/** @type {Past} */ one) => one.attempts)] : ofLeases()),
    { title: "end", cell: (one) => (one.ended_at ? dayAndClock(one.ended_at, now) : "-"), sort: (one) => one.ended_at ?? 0 },
    names("project", (one) => one.project),
    names("class", (one) => one.class),
    names("name", (one) => one.container_name ?? one.name, true),
    names("image", (one) => one.image, true),
  ];
}

/** @returns {Column<Past>[]} */
function ofLeases() {
  return [
    figures("GPU hours", (one) => one.account?.held_gpu_ms, hours),
    { title: "of them", wide: true, cell: (one) => one.account && split(one.account) },
    { ...figures("peak memory", (one) => one.peak_bytes), cell: (one) => (one.held_bytes ? memoryPair(one.peak_bytes, one.held_bytes) : "-") },
    figures("mean use", (one) => one.account?.use_of_held_ratio, percent),
  ];
}

/** @param {Past} one */
function ranMs({ started_at, ended_at, ran_ms }) {
  if (!started_at) return null;
  return ran_ms ?? (ended_at ? Math.round(1000 * (ended_at - started_at)) : null);
}
