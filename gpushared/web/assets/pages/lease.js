// Say if a run is healthy: what it uses of what it holds, how long it has, what happened, and its last words.
import { buttons, leaseActions } from "../actions.js";
import { facts, h, name, printable } from "../dom.js";
import { clock, grantedBytes, holding, leaseState, memory, memoryPair, percent, span, stamp } from "../format.js";
import { secondsLeft, startOf, stateMark } from "../leases.js";
import { explanationFacts } from "./queue.js";
import { useOverLife } from "../use_over_life.js";

/** @typedef {import("../app.js").Context} Context */

const POINTS = 120;
const NEAR_END = 40;

/** @type {WeakSet<Element>} logs that somebody scrolled up in, so that new lines do not move them */
const scrolledUp = new WeakSet();

/** @param {import("../app.js").Parameters} parameters */
export const title = ({ id }) => id;

/** @param {import("../app.js").Parameters} parameters @param {Context} context */
export function watch({ id, node }, { session }) {
  if (node ? node !== session.node : !session.node) return { leases: ["Leases/List", { pool: true }], report: ["History/Report", { name: id, node, pool: true, points: POINTS }] };
  return { why: ["Leases/Explain", { lease_id: id }], report: ["History/Report", { name: id, points: POINTS }], log: ["logs", { lease_id: id }] };
}

/** @param {{why?: Explanation, leases?: ListLeasesResponse, report?: ReportResponse}} state @param {Context} context */
export function view({ why, leases, report }, context) {
  const { parameters, troubles } = context;
  const lease = why?.lease ?? leases?.leases.find((one) => one.id === parameters.id && one.node === parameters.node);
  const seen = report?.leases[0];
  const was = seen?.lease;
  if (!lease && !seen) {
    const isKnown = !(troubles.why || (leases && troubles.report));
    return [h("h1", null, `Lease ${parameters.id}`), h("p", { class: "quiet" }, isKnown ? "Loading…" : "Nothing more is known of it here.")];
  }
  return [
    h("h1", null, h("span", { class: "mono" }, parameters.id), " ", lease ? stateMark(leaseState(lease)) : was && stateMark(was.outcome || "not over")),
    lease && headline(lease, context),
    lease?.outcome && h("p", { class: "banner" }, h("strong", null, leaseState(lease)), lease.outcome.text && `: ${lease.outcome.text}`),
    lease?.notice && h("p", { class: "banner" }, lease.notice.text, lease.notice.ends_at > 0 && ` (${clock(lease.notice.ends_at, context.now)})`),
    lease?.fault && h("p", { class: "banner bad" }, h("strong", null, "Fault: "), lease.fault),
    lease && (why ? buttons(leaseActions(lease, context)) : h("p", { class: "quiet" }, "It is on node ", name(lease.node), ": only the page and the commands there can change it.")),
    h("div", { class: "cards" },
      h("section", { class: "card" }, h("h2", null, "What it has"), facts([...(lease ? present(lease, context) : was ? past(was) : []), ...(why ? explanationFacts(why, context) : [])])),
      h("section", { class: "card" }, h("h2", null, "Use of what it holds"), seen ? useOverLife(seen) : h("p", { class: "quiet" }, "Nothing was seen yet."), seen && notes(seen))),
    why && logView(context.logs.log, context.troubles.log, `gpushare logs -f ${parameters.id}`),
    why && story(why.story.map((entry) => ({ at: entry.at, state: entry.state, text: entry.text }))),
  ];
}

/** @param {Lease} lease @param {Context} context */
function headline(lease, { now }) {
  const { waiting } = lease;
  const left = secondsLeft(lease, now);
  const parts = [
    waiting && `position ${waiting.position} of ${waiting.queue_length}, start ${startOf(waiting, now)}`,
    lease.grants.length > 0 && `uses ${memoryPair(lease.memory_used_bytes, grantedBytes(lease.grants))}`,
    lease.idle_since > 0 && `idle for ${span(now - lease.idle_since)}`,
    left > 0 && `${span(left)} left`,
  ];
  return [h("p", { class: "headline" }, parts.filter(Boolean).join(" · ")), waiting && h("p", null, waiting.text || waiting.reason)];
}

/** @param {Lease} lease @param {Context} context */
function present(lease, { now }) {
  const idle = lease.idle_since > 0 && [`for ${span(now - lease.idle_since)}`, lease.lowered && "gives way to others first"].filter(Boolean).join("; ");
  const wishes = [lease.models.join(" or "), lease.near.length && `near ${lease.near.join(", ")}`, lease.away_from.length && `away from ${lease.away_from.join(", ")}`,
    lease.host_cpu_milli !== "0" && `${Number(lease.host_cpu_milli) / 1000} CPUs`, lease.host_memory_bytes !== "0" && `${memory(lease.host_memory_bytes)} of host memory`];
  return /** @type {[string, import("../dom.js").Child][]} */ ([
    ["of", [name(lease.owner), lease.project && lease.project !== lease.owner && [" in project ", name(lease.project)]]],
    ["asks", [name(lease.asks), ` ${lease.class}`, lease.preset && [", preset ", name(lease.preset)], lease.priority !== 0 && `, priority ${lease.priority}`]],
    ["holds", lease.grants.length > 0 && holding(lease.grants)],
    ["walls", lease.memory_wall && `memory: ${lease.memory_wall}, compute: ${lease.compute_cap || "-"}`],
    ["runs", (lease.image || lease.container_name) && [lease.image && name(lease.image), lease.container_name && [" called ", name(lease.container_name)]]],
    ["job", lease.job_id && [h("a", { href: `job/${lease.job_id}` }, lease.job_id), lease.job_pool && [" of pool ", name(lease.job_pool)], `, attempt ${lease.job_attempt}`]],
    ["wants", wishes.filter(Boolean).join("; ")],
    ["asked", `${stamp(lease.created_at)}, ${span(now - lease.created_at)} ago`],
    ["ends", lease.expires_at > 0 && lease.state !== "ended" ? `${clock(lease.expires_at, now)}, ${span(lease.expires_at - now)} left` : lease.state === "active" && "no time limit"],
    ["idle", idle],
    ["gave way", lease.preemptions > 0 && `${lease.preemptions} ${lease.preemptions === 1 ? "time" : "times"}`],
    ["restarts", lease.restarts > 0 && String(lease.restarts)],
    ["held by", lease.held_by && name(lease.held_by)],
  ]);
}

/** @param {PastLease} lease */
function past(lease) {
  return /** @type {[string, import("../dom.js").Child][]} */ ([
    ["of", [name(lease.owner), " in project ", name(lease.project)]],
    ["asked", [name(lease.asks), ` ${lease.class}`]],
    ["outcome", lease.outcome && [lease.outcome, lease.outcome_text && `: ${lease.outcome_text}`]],
    ["held", lease.gpu_labels.length > 0 && `GPU ${lease.gpu_labels.join(", ")} of ${lease.node} (${lease.models.join(", ")}), ${memory(lease.held_bytes)}`],
    ["began", lease.started_at > 0 && stamp(lease.started_at)],
    ["ended", lease.ended_at > 0 && stamp(lease.ended_at)],
  ]);
}

/** @param {LeaseReport} report */
function notes({ notes: found, worst_gpu_ratio }) {
  return [
    worst_gpu_ratio !== undefined && h("p", { class: "quiet" }, `The least used GPU: ${percent(worst_gpu_ratio)}`),
    found.map((note) => h("p", { class: "banner" }, note.text, note.mend && !note.text.includes(`\`${note.mend}\``) && [": ", h("code", null, note.mend)])),
  ];
}

/** @param {{at: number, state?: string, text: string}[]} entries */
export function story(entries) {
  return h("section", null,
    h("h2", null, "Its story"),
    h("ol", { class: "story" }, entries.map((entry, place) =>
      h("li", { key: String(place) }, h("time", { class: "quiet", datetime: new Date(entry.at * 1000).toISOString() }, stamp(entry.at)), entry.state && h("span", { class: "quiet" }, entry.state), h("span", null, entry.text)))));
}

/** Show the last lines of a log as they come. @param {import("../stream.js").Log | undefined} log @param {import("../api.js").Failure | undefined} trouble @param {string} command */
export function logView(log, trouble, command) {
  const lines = log ? [...log.lines, ...(log.begun ? [log.begun] : [])] : [];
  const end = (/** @type {HTMLElement} */ element) => {
    const text = printable(lines.join("\n"));
    if (element.textContent !== text) element.textContent = text;
    if (!scrolledUp.has(element)) element.scrollTop = element.scrollHeight;
  };
  const scroll = (/** @type {Event} */ event) => {
    const element = /** @type {HTMLElement} */ (event.target);
    if (element.scrollHeight - element.scrollTop - element.clientHeight > NEAR_END) scrolledUp.add(element);
    else scrolledUp.delete(element);
  };
  return h("section", null,
    h("h2", { id: "log" }, "Last lines of its log"),
    trouble
      ? h("p", { class: "quiet" }, trouble.message, trouble.hint && ` (${trouble.hint})`)
      : lines.length
        ? h("pre", { class: "log", tabindex: 0, role: "log", "aria-live": "off", "aria-labelledby": "log", own: end, onscroll: scroll })
        : h("p", { class: "quiet" }, "No line was written yet."),
    h("p", { class: "quiet" }, log?.isOver && "It has ended. ", "In a terminal: ", h("code", null, command)));
}
