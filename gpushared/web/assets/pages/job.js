// Say where a job is, why it waits, what its attempts used, and its last words.
import { buttons, jobActions } from "../actions.js";
import { facts, h, name } from "../dom.js";
import { clock, jobState, span, stamp } from "../format.js";
import { leasePath, stateMark } from "../leases.js";
import { table } from "../table.js";
import { useOverLife } from "../use_over_life.js";
import { logView, story } from "./lease.js";

/** @typedef {import("../app.js").Context} Context */

const POINTS = 120;

/** @param {import("../app.js").Parameters} parameters */
export const title = ({ id }) => `Job ${id}`;

/** @param {import("../app.js").Parameters} parameters @param {Context} context */
export function watch({ id }, { pool }) {
  return { why: ["Jobs/Explain", { job_id: id }], report: ["History/Report", { name: id, pool, points: POINTS }], log: ["logs", { job_id: id }] };
}

/** @param {{why?: JobExplanation, report?: ReportResponse}} state @param {Context} context */
export function view({ why, report }, context) {
  const { parameters, troubles, logs } = context;
  if (!why?.job) return [h("h1", null, `Job ${parameters.id}`), h("p", { class: "quiet" }, troubles.why ? "Nothing more is known of it here." : "Loading…")];
  const { job, sentence, reason_code, hint } = why;
  return [
    h("h1", null, "Job ", h("span", { class: "mono" }, job.id), " ", stateMark(jobState(job))),
    h("p", { class: "headline" }, [job.position > 0 && `position ${job.position}`, `asks ${job.asks}`, ran(job, context.now)].filter(Boolean).join(" · ")),
    sentence && h("p", null, h("span", { class: "quiet" }, "why "), sentence, reason_code && h("span", { class: "quiet" }, ` (${reason_code})`)),
    hint && h("p", null, h("span", { class: "quiet" }, "helps "), hint),
    buttons(jobActions(job, context)),
    h("div", { class: "cards" },
      h("section", { class: "card" }, h("h2", null, "What it is"), facts(course(job, context.now))),
      h("section", { class: "card" }, h("h2", null, "Use of what it holds"),
        report?.leases.length
          ? report.leases.map((one) => h("div", { key: String(one.lease?.attempt) }, report.leases.length > 1 && h("h3", null, `Attempt ${one.lease?.attempt}`), useOverLife(one)))
          : h("p", { class: "quiet" }, "Nothing was seen yet."))),
    h("h2", null, "Where it ran"),
    attempts(job, context),
    logView(logs.log, troubles.log, `gpushare logs -f ${job.id}`),
    story(why.story),
  ];
}

/** @param {Job} job @param {number} now */
function ran(job, now) {
  if (!job.started_at) return "";
  return job.ended_at ? `ran ${span(job.ended_at - job.started_at)}` : `runs for ${span(now - job.started_at)}`;
}

/** @param {Job} job @param {number} now */
function course(job, now) {
  return /** @type {[string, import("../dom.js").Child][]} */ ([
    ["of", [name(job.owner), " in project ", name(job.project)]],
    ["class", [job.class, job.priority !== 0 && `, priority ${job.priority}`]],
    ["runs", job.image && [name(job.image), " called ", name(job.name)]],
    ["in", job.pool ? "the pool" : "this node"],
    ["array", job.array_id && [h("span", { class: "mono" }, job.array_id), `, number ${job.array_index ?? 0}`]],
    ["submitted", `${stamp(job.submitted_at)}, ${span(now - job.submitted_at)} ago`],
  ]);
}

/** @param {Job} job @param {Context} context */
function attempts(job, { now, session }) {
  const here = (/** @type {JobPart} */ part) => !part.node || part.node === session.node;
  const rows = [
    ...job.parts.map((part) => ({ attempt: job.attempt, part, began: job.started_at, ended: job.ended_at })),
    ...[...job.tries].reverse().flatMap((one) => one.parts.map((part) => ({ attempt: one.attempt, part, began: one.started_at, ended: one.ended_at }))),
  ];
  return table({
    caption: "Where it ran",
    rows,
    key: (row) => `${row.attempt} ${row.part.rank} ${row.part.node}`,
    empty: "Nowhere yet.",
    columns: [
      { title: "attempt", cell: (row) => String(row.attempt) },
      { title: "node", cell: (row) => name(row.part.node) },
      { title: "state", cell: (row) => stateMark(row.part.state || "not answered yet") },
      { title: "lease", cell: (row) => row.part.lease_id && h("a", { class: "mono", href: leasePath(row.part.lease_id) + (here(row.part) ? "" : `?node=${encodeURIComponent(row.part.node)}`) }, row.part.lease_id) },
      { title: "began", cell: (row) => (row.began ? stamp(row.began) : "-") },
      { title: "ran", right: true, cell: (row) => (row.began ? span((row.ended || now) - row.began) : "-") },
      { title: "what happened", cell: (row) => [row.part.reason, row.part.silent_since > 0 && `silent since ${clock(row.part.silent_since, now)}`].filter(Boolean).join(", ") || "-" },
    ],
  });
}
