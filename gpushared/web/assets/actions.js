// Offer what this state and this user allow, each asked once more beside the command that it stands for.
import { call } from "./api.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { share, span } from "./format.js";
import { secondsLeft } from "./leases.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./dialog.js").Question} Question */
/** @typedef {{name: string, refusal: string, question: Question}} Action `refusal` says why it is not possible now */
/**
 * @typedef {Pick<Question, "title" | "yes" | "text" | "fields" | "danger"> & {name: string, verb: string, call: string,
 *   refusal?: string, words?: (values: Values) => string, body?: (values: Values) => object, told?: (answer: any) => string}} Plan
 *   `verb` is the command's, with `words` behind the id; `told` words the answer
 */
/** @typedef {import("./dialog.js").Values} Values */

const LEAVING = ["draining", "ended"];
const ON_THE_WAY = ["suspending", "suspended"];
const MOVES = /** @type {Record<string, string>} */ ({
  suspending: ": its GPU memory is being moved to the host",
  resuming: ": its GPU memory is being moved back",
});
const JOB_OVER = ["succeeded", "failed", "cancelled"];
const KILLED = "Its container is told to stop, and is killed after 10 seconds.";

/** Quote a word for a shell where that is needed. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** @param {Action[]} actions */
export function buttons(actions) {
  /** @type {Map<string, string[]>} */
  const refusals = new Map();
  for (const { name, refusal } of actions) if (refusal) refusals.set(refusal, [...(refusals.get(refusal) ?? []), name]);
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" },
    actions.map(({ name, refusal, question }) =>
      h("button", { key: name, "aria-disabled": refusal ? "true" : null, title: refusal || null, onclick: () => refusal || ask(question) }, name)),
    [...refusals].map(([refusal, names]) => h("p", { class: "quiet" }, `${names.join(", ")}: not possible, ${refusal}.`)));
}

/** @param {Lease | Job} answer */
function moved(answer) {
  return `${answer.id} is ${answer.state}${MOVES[answer.state] ?? ""}`;
}

/**
 * @param {string} id @param {object} reference to it in a call @param {string} rights why the reader may not change it
 * @param {Plan[]} plans @returns {Action[]}
 */
function actionsOf(id, reference, rights, plans) {
  return plans.map(({ name, verb, call: service, refusal = "", words = () => "", body = () => ({}), told = moved, ...question }) => ({
    name,
    refusal: rights || refusal,
    question: {
      ...question,
      command: (values) => `gpushare ${verb} ${id} ${words(values)}`.trim(),
      run: async (values) => told(await call(service, { ...reference, ...body(values) })),
    },
  }));
}

/** @param {string} owner */
function onlyOwner(owner) {
  return `it belongs to ${owner}; only they and administrators may change it`;
}

/** @param {string} title @param {string} call @param {number} priority @returns {Plan} */
function priorityPlan(title, call, priority) {
  return {
    name: "Priority", verb: "priority", call, title, yes: "Set it",
    fields: [{ name: "priority", label: "Priority", value: String(priority), hint: "-100 to 100, higher goes first in its project" }],
    words: ({ priority: said }) => `${said.startsWith("-") ? "-- " : ""}${quoted(said)}`,
    body: ({ priority: said }) => ({ priority: Number(said) }),
    told: (answer) => `priority ${answer.priority}`,
  };
}

/** @param {string} id @param {boolean} isHeld @param {string} call @returns {Plan} */
function holdPlan(id, isHeld, call) {
  const body = () => ({ held: !isHeld });
  return isHeld
    ? { name: "Release", verb: "unhold", call, body, title: `Let ${id} start when it is its turn?`, yes: "Release it" }
    : { name: "Hold", verb: "hold", call, body, title: `Keep ${id} from starting?`, yes: "Hold it", text: "It keeps its place in the queue until it is released." };
}

/** @param {Lease} lease @param {Context} context */
export function leaseActions(lease, { session, now }) {
  const { id, state, grants } = lease;
  const rights = session.trusted || lease.owner_uid === String(session.uid) ? "" : onlyOwner(lease.owner);
  const over = LEAVING.includes(state) ? `it is ${state}` : "";
  const whole = grants.length && grants.every((grant) => grant.compute_permille === 1000) ? "it has whole GPUs, and no size of its own" : "";
  const isAway = ON_THE_WAY.includes(state);
  const left = secondsLeft(lease, now);
  /** @type {Plan[]} */
  const ofQueue = state === "queued" || lease.waiting
    ? [holdPlan(id, Boolean(lease.held_by), "Leases/Hold"), priorityPlan(`Move ${id} among the requests of its project?`, "Leases/SetPriority", lease.priority)]
    : [];
  /** @type {Plan[]} */
  const ofContainer = state === "queued"
    ? []
    : [
        { name: "Pause", verb: "pause", call: "Leases/Pause", refusal: state === "active" || (isAway && lease.waiting) ? "" : `it is ${state} and does not run`,
          title: `Take ${id} off its GPUs?`, yes: "Pause it", text: "Its container is kept as it is, with its GPU memory in the host's, until it is resumed." },
        { name: "Resume", verb: "resume", call: "Leases/Resume", refusal: isAway ? "" : `it is ${state}, not paused`,
          title: `Bring ${id} back?`, yes: "Resume it", text: "It comes back to its GPUs as soon as there is room." },
      ];
  return actionsOf(id, { lease_id: id }, rights, [
    {
      name: "Extend", verb: "extend", call: "Leases/Extend", refusal: over || (lease.expires_at || state !== "active" ? "" : "it has no time limit"),
      title: `Give ${id} more time?`, yes: "Extend it", text: left ? `It has ${span(left)} left.` : "",
      fields: [{ name: "time", label: "So much longer", value: "1h", hint: "30m, 2h, 1d" }],
      words: ({ time }) => quoted(time), body: (said) => said,
      told: (longer) => (secondsLeft(longer, now) ? `${id}: ${span(secondsLeft(longer, now))} left` : id),
    },
    {
      name: "Resize", verb: "resize", call: "Leases/Resize", refusal: over || whole || (isAway || state === "resuming" ? `it is ${state}, and keeps its size until it is back` : ""),
      title: `Give ${id} another size?`, yes: "Resize it", text: `It asks for ${lease.asks}. What is left empty stays as it is.`,
      fields: [
        { name: "gpu", label: "Share of each GPU, memory and compute", value: grants.length ? share(grants[0].compute_permille) : "", hint: "0.5, or 0.25..1" },
        { name: "gpu_memory", label: "or memory of each GPU", value: "", hint: "12g, or 8g..24g" },
        { name: "gpu_compute", label: "or compute of each GPU", value: "", hint: "50%" },
      ],
      words: (said) => Object.entries(said).filter(([, size]) => size).map(([name, size]) => `--${name.replace("_", "-")} ${quoted(size)}`).join(" "),
      body: (said) => said,
      told: (answer) => [`${id}: ${answer.lease.asks}`, ...answer.effects].join("; "),
    },
    ...ofQueue,
    ...ofContainer,
    {
      name: "Stop", verb: "stop", call: "Leases/Stop", refusal: over, title: `End ${id}?`, yes: "Stop it", danger: true,
      text: lease.job_id ? `It is for job ${lease.job_id}.` : state === "queued" ? "It leaves the queue." : KILLED,
    },
  ]);
}

/** @param {Job} job @param {Context} context */
export function jobActions({ id, state, owner, priority }, { session }) {
  const rights = session.trusted || owner.split("@")[0] === session.user ? "" : onlyOwner(owner);
  const waits = ["queued", "held"].includes(state) ? "" : `it is ${state} and does not wait`;
  return actionsOf(id, { job_id: id }, rights, [
    { ...holdPlan(id, state === "held", "Jobs/Hold"), refusal: waits },
    { ...priorityPlan(`Move ${id} among the jobs of its project?`, "Jobs/SetPriority", priority), refusal: state === "placing" ? "" : waits },
    { name: "Cancel", verb: "cancel", call: "Jobs/Cancel", refusal: JOB_OVER.includes(state) ? `it is ${state}` : "", title: `End job ${id}?`, yes: "Cancel it", danger: true, text: KILLED },
  ]);
}
