import { h, name } from "../dom.js";
import { clock, gpuOf, grantedBytes, grantedShare, memoryPair, share, span } from "../format.js";
import { OWNERS, filterForm, inTerminal } from "../past.js";
import { table } from "../table.js";

/** @typedef {import("../app.js").Context} Context */

export const title = "Idle";

/** @param {import("../app.js").Parameters} _ @param {Context} context */
export function watch(_, { pool }) {
  return { leases: ["Leases/List", { pool }] };
}

/** @param {{leases?: ListLeasesResponse}} state @param {Context} context */
export function view({ leases: answer }, context) {
  const { parameters } = context;
  const idle = (answer?.leases ?? []).filter((lease) => lease.idle_since && isAsked(lease, parameters));
  idle.sort((one, other) => one.idle_since - other.idle_since);
  const permille = idle.flatMap((lease) => lease.grants).reduce((sum, grant) => sum + grant.compute_permille, 0);
  return [
    h("h1", null, "Idle"),
    filterForm("idle", OWNERS, context),
    answer ? [notices(answer.notices), h("p", null, idle.length ? [h("strong", null, share(permille)), " GPUs are held and run no kernel."] : "No lease is idle.")] : h("p", { class: "quiet" }, "Loading…"),
    idle.length ? leases(idle, context) : null,
    h("p", { class: "quiet" }, h("a", { href: "use?by=user&since=30d" }, "Use"), " sums idle time that is over."),
    inTerminal("idle", parameters, context),
  ];
}

/** @param {string[]} sentences */
export function notices(sentences) {
  return sentences.map((sentence) => h("p", { class: "banner" }, sentence));
}

/** @param {Lease} lease @param {import("../app.js").Parameters} words */
function isAsked(lease, words) {
  return (
    (!words.user || [lease.owner, String(lease.owner_uid)].includes(words.user)) &&
    (!words.project || words.project === lease.project) &&
    (!words.class || words.class === lease.class)
  );
}

/** @param {Lease[]} idle @param {Context} context */
function leases(idle, { now, pool, draw }) {
  /** @type {import("../table.js").Column<Lease>[]} */
  const columns = [
    { title: "lease", cell: (lease) => h("a", { href: `lease/${encodeURIComponent(lease.id)}` }, lease.id) },
    ...(pool ? [{ title: "node", cell: (/** @type {Lease} */ lease) => name(lease.node), sort: (/** @type {Lease} */ lease) => lease.node }] : []),
    { title: "user", cell: (lease) => name(lease.owner), sort: (lease) => lease.owner },
    { title: "GPU", cell: (lease) => lease.grants.map(gpuOf).join(",") },
    { title: "share", right: true, cell: (lease) => grantedShare(lease.grants), sort: (lease) => lease.grants.reduce((sum, grant) => sum + grant.compute_permille, 0) },
    { title: "memory", right: true, cell: (lease) => memoryPair(lease.memory_used_bytes, grantedBytes(lease.grants)), sort: (lease) => grantedBytes(lease.grants) },
    { title: "idle", right: true, cell: (lease) => span(now - lease.idle_since), sort: (lease) => -lease.idle_since },
    { title: "since", cell: (lease) => clock(lease.idle_since, now) },
    { title: "left", right: true, wide: true, cell: (lease) => span(lease.expires_at ? lease.expires_at - now : null) },
    { title: "project", wide: true, cell: (lease) => name(lease.project), sort: (lease) => lease.project },
    { title: "name", cell: (lease) => name(lease.container_name || "-") },
    { title: "next", cell: (lease) => (lease.notice?.kind === "idle" ? lease.notice.text : "-") },
  ];
  return table({ caption: "Leases that hold GPUs now and run no kernel", columns, rows: idle, key: (lease) => `${lease.node} ${lease.id}`, changed: draw });
}
