// Say when each request starts, behind whom, and why it waits.
import { facts, h, name } from "../dom.js";
import { jobState, span, start } from "../format.js";
import { isMine, leaseLink, leasePath, startOf, stateMark, waitingOf, waits } from "../leases.js";
import { table } from "../table.js";

/** @typedef {import("../app.js").Context} Context */

const EXPLAINED = 5;

/** @type {Set<string>} leases whose explanation somebody opened */
const opened = new Set();

export const title = "Queue";

/** @param {import("../app.js").Parameters} _parameters @param {Context} context */
export function watch(_parameters, { pool }) {
  return { leases: ["Leases/List", { pool }], jobs: ["Jobs/List", {}] };
}

/** @param {{leases?: ListLeasesResponse, jobs?: ListJobsResponse}} state @param {Context} context */
export function view({ leases, jobs }, context) {
  if (!leases) return h("p", { class: "quiet" }, "Loading…");
  const waiting = waitingOf(leases.leases);
  const mine = waiting.filter((lease) => isMine(lease, context));
  return [
    h("h1", null, heading(waiting, mine, context.now)),
    leases.notices.map((text) => h("p", { class: "banner" }, text)),
    h("ol", { class: "queue" }, waiting.map((lease, place) => waitingCard(lease, context, more(lease, context, place < EXPLAINED)))),
    !waiting.length && h("p", { class: "quiet" }, "Who asks for what is free now starts at once: ", h("a", { href: "submit" }, "New request"), " tells."),
    jobs && h("h2", null, "Your jobs"),
    jobs && ownJobs(jobs, context),
  ];
}

/** @param {Lease[]} waiting @param {Lease[]} mine @param {number} now */
function heading(waiting, mine, now) {
  if (!waiting.length) return "Nobody waits";
  const first = mine[0]?.waiting;
  if (!first) return waits(waiting.length);
  const more = mine.length > 1 ? ` (and ${mine.length - 1} more of yours)` : "";
  return `Yours is ${first.position} of ${first.queue_length}, start ${startOf(first, now)}${more}`;
}

/** @param {Lease} lease @param {Context} context @param {import("../dom.js").Child} [more] */
export function waitingCard(lease, context, more) {
  const { waiting } = lease;
  if (!waiting) return null;
  const { now } = context;
  const mine = isMine(lease, context);
  return h("li", { key: `${lease.node} ${lease.id}`, class: mine ? "card mine" : "card" },
    h("div", { class: "head" },
      h("span", { class: "position", title: `position ${waiting.position} of ${waiting.queue_length}` }, String(waiting.position)),
      h("h2", null, leaseLink(lease, context)),
      context.pool && lease.node && h("span", { class: "quiet" }, "on ", name(lease.node)),
      h("span", null, "asks ", h("strong", null, name(lease.asks)), ` ${lease.class} of `, name(lease.owner), mine && " (you)"),
      lease.container_name && name(lease.container_name, "quiet"),
      h("span", { class: "quiet" }, `waits for ${span(now - (lease.since || lease.created_at))}`),
      h("span", { class: "start" }, "start ", h("strong", null, startOf(waiting, now)))),
    h("p", null, h("span", { class: "quiet" }, "why "), waiting.text || waiting.reason, h("span", { class: "quiet" }, ` (${waiting.reason})`)),
    lease.held_by && h("p", null, "held by ", name(lease.held_by)),
    more);
}

/** Show the explanation of a lease of this node, at once if it is early in the queue or the reader's own.
 * @param {Lease} lease @param {Context} context @param {boolean} isEarly */
function more(lease, context, isEarly) {
  const here = !context.pool || !lease.node || lease.node === context.session.node;
  if (!here || !lease.id.startsWith("l-")) return null;
  if (isEarly || isMine(lease, context) || opened.has(lease.id)) return details(lease, context);
  return h("button", { class: "plain", onclick: () => open(lease.id, context) }, "What would start now?");
}

/** @param {string} id @param {Context} context */
function open(id, context) {
  opened.add(id);
  context.draw();
}

/** @param {Lease} lease @param {Context} context */
function details(lease, context) {
  const explanation = context.memo(lease.token, "Leases/Explain", { lease_id: lease.id });
  if (!explanation || explanation.failure) return h("p", { class: "quiet" }, explanation?.failure.message ?? "…");
  return facts(explanationFacts(explanation, context));
}

/**
 * Return what `gpushare why` says of a wait: refusals, GPUs that are kept, what would start now.
 * @param {Explanation} explanation @param {Context} context
 */
export function explanationFacts({ lease, refusals, kept, fits_now, gives_way }, { now }) {
  const isOwn = kept?.lease_id === lease?.id;
  return /** @type {[string, import("../dom.js").Child][]} */ ([
    ...refusals.map((refusal) => ["refused", `${refusal.gpus === 1 ? "1 GPU" : `each of ${refusal.gpus} GPUs`}: ${refusal.text || refusal.reason}`]),
    kept?.gpu_labels.length && ["kept", [`GPU ${kept.gpu_labels.join(", ")} for `, isOwn ? "it" : h("a", { href: leasePath(kept.lease_id) }, kept.lease_id), !isOwn && `, start ${start(0, kept.start_to, now)}`]],
    fits_now && ["instead", fits_now],
    gives_way && ["others", gives_way],
  ].filter(Boolean));
}

/** @param {ListJobsResponse} answer @param {Context} context */
function ownJobs(answer, context) {
  return [
    answer.notices.map((text) => h("p", { class: "banner" }, text)),
    table({
      caption: "Your jobs",
      rows: answer.jobs,
      key: (job) => job.id,
      empty: "You have no job that is not over.",
      changed: context.draw,
      columns: [
        { title: "job", cell: (job) => h("a", { href: `job/${job.id}`, class: "mono" }, job.id) },
        { title: "name", sort: (job) => job.name, cell: (job) => name(job.name) },
        { title: "state", sort: (job) => job.state, cell: (job) => stateMark(jobState(job)) },
        { title: "node", cell: (job) => name(job.parts.map((part) => part.node).join(",") || "-") },
        { title: "asks", cell: (job) => name(job.asks) },
        { title: "age", right: true, sort: (job) => -job.submitted_at, cell: (job) => span(context.now - job.submitted_at) },
        { title: "reason", cell: (job) => h("span", { class: "why" }, job.reason || "-") },
      ],
    }),
  ];
}
