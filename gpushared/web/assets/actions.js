// Offer what this state and this user allow, each asked once more beside the command that it stands for.
import { call } from "./api.js";
import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { share, span } from "./format.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./dialog.js").Question} Question */
/** An action that is not possible now has its reason, and no question. @typedef {{name: string, refusal: string, question: Question}} Action */

const LEAVING = ["draining", "ended"];
const ON_THE_WAY = ["suspending", "suspended"];
const MOVES = /** @type {Record<string, string>} */ ({
  suspending: ": its GPU memory is being moved to the host",
  resuming: ": its GPU memory is being moved back",
});
const PRIORITY = { name: "priority", label: "Priority", value: "0", hint: "-100 to 100, higher goes first in its project" };

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

/** @param {string} priority */
function priorityWords(priority) {
  return priority.startsWith("-") ? `-- ${quoted(priority)}` : quoted(priority);
}

/** @param {Lease} answer */
function moved(answer) {
  return `${answer.id} is ${answer.state}${MOVES[answer.state] ?? ""}`;
}

/** @param {Lease} lease @param {Context} context @returns {Action[]} */
export function leaseActions(lease, { session, now }) {
  const { id, state } = lease;
  const reference = { lease_id: id };
  const rights = session.trusted || lease.owner_uid === String(session.uid) ? "" : `it belongs to ${lease.owner}; only they and administrators may change it`;
  const over = LEAVING.includes(state) ? `it is ${state}` : "";
  const waits = state === "queued" ? "" : `it is ${state} and does not wait`;
  const held = lease.held_by ? "" : "nobody holds it";
  const whole = lease.grants.length && lease.grants.every((grant) => grant.compute_permille === 1000) ? "it has whole GPUs, and no size of its own" : "";
  const unlimited = lease.expires_at || state !== "active" ? "" : "it has no time limit";
  const running = state === "active" || (ON_THE_WAY.includes(state) && lease.waiting) ? "" : `it is ${state} and does not run`;
  const paused = ON_THE_WAY.includes(state) ? "" : `it is ${state}, not paused`;
  const action = (/** @type {string} */ name, /** @type {string} */ refusal, /** @type {Question} */ question) => ({ name, refusal: rights || refusal, question });
  return [
    action("Extend", over || unlimited, {
      title: `Give ${id} more time?`, yes: "Extend it", text: lease.expires_at ? `It has ${span(lease.expires_at - now)} left.` : "",
      fields: [{ name: "time", label: "So much longer", value: "1h", hint: "30m, 2h, 1d" }],
      command: ({ time }) => `gpushare extend ${id} ${quoted(time)}`,
      run: async ({ time }) => {
        const answer = await call("Leases/Extend", { ...reference, time });
        return answer.expires_at ? `${id}: ${span(answer.expires_at - now)} left` : id;
      },
    }),
    action("Resize", over || whole, {
      title: `Give ${id} another size?`, yes: "Resize it", text: `It asks for ${lease.asks}. What is left empty stays as it is.`,
      fields: [
        { name: "gpu", label: "Share of each GPU, memory and compute", value: lease.grants.length ? share(lease.grants[0].compute_permille) : "", hint: "0.5, or 0.25..1" },
        { name: "gpu_memory", label: "or memory of each GPU", value: "", hint: "12g, or 8g..24g" },
        { name: "gpu_compute", label: "or compute of each GPU", value: "", hint: "50%" },
      ],
      command: (said) => ["gpushare resize", id, ...Object.entries(said).filter(([, size]) => size).map(([name, size]) => `--${name.replace("_", "-")} ${quoted(size)}`)].join(" "),
      run: async (said) => {
        const answer = await call("Leases/Resize", { ...reference, ...said });
        return [`${id}: ${answer.lease.asks}`, ...answer.effects].join("; ");
      },
    }),
    ...(state === "queued"
      ? [
          lease.held_by
            ? action("Release", held, { title: `Let ${id} start when it is its turn?`, yes: "Release it", command: () => `gpushare unhold ${id}`, run: async () => (await call("Leases/Hold", { ...reference, held: false })).id })
            : action("Hold", waits, { title: `Keep ${id} from starting?`, yes: "Hold it", text: "It keeps its place in the queue until it is released.", command: () => `gpushare hold ${id}`, run: async () => (await call("Leases/Hold", { ...reference, held: true })).id }),
          action("Priority", waits, {
            title: `Move ${id} among the requests of its project?`, yes: "Set it", fields: [{ ...PRIORITY, value: String(lease.priority) }],
            command: ({ priority }) => `gpushare priority ${id} ${priorityWords(priority)}`,
            run: async ({ priority }) => `${id}: priority ${(await call("Leases/SetPriority", { ...reference, priority: Number(priority) })).priority}`,
          }),
        ]
      : [
          action("Pause", running, { title: `Take ${id} off its GPUs?`, yes: "Pause it", text: "Its container is kept as it is, with its GPU memory in the host's, until it is resumed.", command: () => `gpushare pause ${id}`, run: async () => moved(await call("Leases/Pause", reference)) }),
          action("Resume", paused, { title: `Bring ${id} back?`, yes: "Resume it", text: "It comes back to its GPUs as soon as there is room.", command: () => `gpushare resume ${id}`, run: async () => moved(await call("Leases/Resume", reference)) }),
        ]),
    action("Stop", over, {
      title: `End ${id}?`, yes: "Stop it", danger: true,
      text: lease.job_id ? `It is for job ${lease.job_id}.` : state === "queued" ? "It leaves the queue." : "Its container is told to stop, and is killed after 10 seconds.",
      command: () => `gpushare stop ${id}`,
      run: async () => moved(await call("Leases/Stop", reference)),
    }),
  ];
}

/** @param {Job} job @param {Context} context @returns {Action[]} */
export function jobActions(job, { session }) {
  const { id, state } = job;
  const reference = { job_id: id };
  const rights = session.trusted || job.owner.split("@")[0] === session.user ? "" : `it belongs to ${job.owner}; only they and administrators may change it`;
  const over = ["succeeded", "failed", "cancelled"].includes(state) ? `it is ${state}` : "";
  const waits = ["queued", "held"].includes(state) ? "" : `it is ${state} and does not wait`;
  const isHeld = state === "held";
  const action = (/** @type {string} */ name, /** @type {string} */ refusal, /** @type {Question} */ question) => ({ name, refusal: rights || refusal, question });
  return [
    action(isHeld ? "Release" : "Hold", waits, {
      title: isHeld ? `Let job ${id} start when it is its turn?` : `Keep job ${id} from starting?`, yes: isHeld ? "Release it" : "Hold it",
      command: () => `gpushare ${isHeld ? "unhold" : "hold"} ${id}`,
      run: async () => (await call("Jobs/Hold", { ...reference, held: !isHeld })).state,
    }),
    action("Priority", over || (waits && state !== "placing" ? waits : ""), {
      title: `Move job ${id} among those of its project?`, yes: "Set it", fields: [{ ...PRIORITY, value: String(job.priority) }],
      command: ({ priority }) => `gpushare priority ${id} ${priorityWords(priority)}`,
      run: async ({ priority }) => `priority ${(await call("Jobs/SetPriority", { ...reference, priority: Number(priority) })).priority}`,
    }),
    action("Cancel", over, {
      title: `End job ${id}?`, yes: "Cancel it", danger: true, text: "Its container is told to stop, and is killed after 10 seconds.",
      command: () => `gpushare cancel ${id}`,
      run: async () => `${id} is ${(await call("Jobs/Cancel", reference)).state}`,
    }),
  ];
}
