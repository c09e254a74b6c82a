import { legend } from "../charts.js";
import { h, name } from "../dom.js";
import { dayAndClock, hours, lasted, memoryPair, percent } from "../format.js";
import { Asked, OWNERS, SPLIT, TIME, address, filterForm, inTerminal, ofOthers, refused, shortcuts, split, windowOf } from "../past.js";
import { table } from "../table.js";

/** @typedef {import("../app.js").Context} Context */

export const title = "History";
const LIMIT = 50;
const MAX_LIMIT = 1000;
const OUTCOMES = ["finished", "stopped", "expired", "never_claimed", "over_limit", "preempted", "idle", "failed"];
const JOB_OUTCOMES = ["succeeded", "failed", "cancelled"];
const KINDS = ["leases", "jobs"];

const asked = new Asked((words, context) => {
  const limit = Math.min(MAX_LIMIT, Math.max(1, Math.trunc(Number(words.limit)) || LIMIT));
  // A job is meant whenever it ran.
  const window = windowOf(words.job && !words.since ? { ...words, since: "366d" } : words, context);
  const request = { window: words.job && !words.since ? { ...window, since: 0 } : window, outcome: words.outcome, limit };
  return { limit, request: words.job && words.kind !== "jobs" ? { ...request, job: words.job } : request };
});
export const { watch } = asked;

/** @param {any} _state @param {Context} context */
export function view(_state, context) {
  const { parameters } = context;
  const ofJobs = parameters.kind === "jobs";
  return [
    h("h1", null, "History"),
    shortcuts("history", context),
    filterForm("history", filters(ofJobs), context),
    ofJobs ? past(context, "History/Jobs", jobs) : past(context, "History/Ended", leases),
    ofOthers(context),
    inTerminal(ofJobs ? "history jobs" : "history", { ...parameters, kind: "" }, context),
  ];
}

/** @param {boolean} ofJobs */
function filters(ofJobs) {
  return [
    { label: "Of", name: "kind", options: KINDS, usual: KINDS[0] },
    ...TIME,
    ...OWNERS,
    { label: "Outcome", name: "outcome", options: ofJobs ? JOB_OUTCOMES : OUTCOMES },
    ...(ofJobs ? [] : [{ label: "Job", name: "job" }]),
  ];
}

/** @param {Context} context @param {string} call @param {(answer: any, context: Context) => import("../dom.js").Child} shown */
function past(context, call, shown) {
  if (!asked.found.asked) return refused({ message: asked.found.error ?? "" });
  const { request, limit } = asked.found.asked;
  const answer = context.memo("", call, request);
  if (!answer) return h("p", { class: "quiet" }, "Loading…");
  if (answer.failure) return refused(answer.failure);
  const more = Math.min(MAX_LIMIT, 10 * limit);
  return [
    shown(answer, context),
    answer.more && more > limit && h("p", null, "There are more: ", h("a", { href: address("history", { ...context.parameters, limit: String(more) }) }, `show ${more}`)),
    answer.more && more === limit && h("p", null, "There are more: an earlier end shows them, and `gpushare history export` all."),
  ];
}

/** @param {EndedResponse} answer @param {Context} context */
function leases(answer, { now, draw, pool }) {
  /** @type {import("../table.js").Column<PastLease>[]} */
  const columns = [
    { title: "lease", cell: (one) => h("a", { href: `lease/${encodeURIComponent(one.id)}` }, one.id) },
    { title: "user", cell: (one) => name(one.owner), sort: (one) => one.owner },
    { title: "outcome", cell: (one) => outcome(one), sort: (one) => one.outcome },
    { title: "exit", right: true, cell: (one) => one.exit_code ?? "-" },
    ...(pool ? [{ title: "node", cell: (/** @type {PastLease} */ one) => name(one.node) }] : []),
    { title: "GPU", cell: (one) => one.gpu_labels.join(",") || "-" },
    { title: "waited", right: true, cell: (one) => lasted(one.waited_ms), sort: (one) => Number(one.waited_ms) },
    { title: "ran", right: true, cell: (one) => (one.started_at ? lasted(one.ran_ms) : "-"), sort: (one) => Number(one.ran_ms) },
    { title: "GPU hours", right: true, cell: (one) => hours(one.account?.held_gpu_ms), sort: (one) => Number(one.account?.held_gpu_ms) },
    { title: "of them", wide: true, cell: (one) => one.account && split(one.account) },
    { title: "peak/held memory", right: true, cell: (one) => (one.held_bytes ? memoryPair(one.peak_bytes, one.held_bytes) : "-"), sort: (one) => Number(one.peak_bytes ?? -1) },
    { title: "mean use", right: true, cell: (one) => percent(one.account?.use_of_held_ratio) || "-", sort: (one) => one.account?.use_of_held_ratio ?? -1 },
    { title: "end", cell: (one) => (one.ended_at ? dayAndClock(one.ended_at, now) : "-"), sort: (one) => one.ended_at },
    { title: "project", cell: (one) => name(one.project), sort: (one) => one.project },
    { title: "class", cell: (one) => one.class, sort: (one) => one.class },
    { title: "name", wide: true, cell: (one) => name(one.container_name || "-") },
    { title: "image", wide: true, cell: (one) => name(one.image || "-") },
  ];
  return [legend(SPLIT), table({ caption: "Leases that are over", columns, rows: answer.leases, key: (one) => `${one.node} ${one.id}`, changed: draw, empty: "No lease ended in this time." })];
}

/** @param {PastJobsResponse} answer @param {Context} context */
function jobs(answer, { now, draw }) {
  /** @type {import("../table.js").Column<PastJob>[]} */
  const columns = [
    { title: "job", cell: (one) => h("a", { href: `job/${encodeURIComponent(one.id)}` }, one.id) },
    { title: "user", cell: (one) => name(one.owner), sort: (one) => one.owner },
    { title: "outcome", cell: (one) => outcome(one), sort: (one) => one.outcome },
    { title: "exit", right: true, cell: (one) => one.exit_code ?? "-" },
    { title: "node", cell: (one) => name(one.nodes.join(",") || "-") },
    { title: "waited", right: true, cell: (one) => lasted(one.waited_ms), sort: (one) => Number(one.waited_ms) },
    { title: "ran", right: true, cell: (one) => (one.started_at && one.ended_at ? lasted(Math.round(1000 * (one.ended_at - one.started_at))) : "-") },
    { title: "attempts", right: true, cell: (one) => one.attempts, sort: (one) => one.attempts },
    { title: "end", cell: (one) => (one.ended_at ? dayAndClock(one.ended_at, now) : "-"), sort: (one) => one.ended_at },
    { title: "asks", wide: true, cell: (one) => (one.node_count === 1 ? one.asks : `${one.node_count} nodes x ${one.asks}`) },
    { title: "class", wide: true, cell: (one) => one.class, sort: (one) => one.class },
    { title: "project", wide: true, cell: (one) => name(one.project), sort: (one) => one.project },
    { title: "name", wide: true, cell: (one) => name(one.name || "-") },
  ];
  return table({ caption: "Jobs that are over", columns, rows: answer.jobs, key: (one) => one.id, changed: draw, empty: "No job ended in this time." });
}

/** @param {{outcome: string, outcome_text: string}} one */
function outcome(one) {
  const bad = ["failed", "over_limit"].includes(one.outcome);
  return h("span", { class: bad ? "bad" : null, title: one.outcome_text || null }, bad && "✗ ", one.outcome || "not over");
}
