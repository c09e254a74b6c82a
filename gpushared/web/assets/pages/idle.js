// Show the leases that hold GPUs now and run no kernel, as `gpushare idle` does.
import { h, name } from "../dom.js";
import { clock, share } from "../format.js";
import { leaseCells, leaseLink } from "../leases.js";
import { OWNERS, filterForm, inTerminal } from "../past.js";
import { figures, names, table } from "../table.js";

export const title = "Idle";

/** @param {Words} _ @param {Context} context */
export function watch(_, { pool }) {
  return { leases: ["Leases/List", { pool }] };
}

/** @param {{leases?: ListLeasesResponse}} state @param {Context} context */
export function view({ leases }, context) {
  const { parameters, pool } = context;
  return [h("h1", null, "Idle"), filterForm("idle", OWNERS, context), leases ? list(leases, context) : h("p", { class: "quiet" }, "Loading…"), inTerminal("idle", parameters, pool)];
}

/** @param {ListLeasesResponse} answer @param {Context} context */
function list({ leases, notices }, context) {
  const { now, pool, draw, parameters: { user, project, class: lease_class } } = context;
  const idle = leases.filter((one) => one.idle_since && (!user || [one.owner, one.owner_uid].includes(user)) && (!project || one.project === project) && (!lease_class || one.class === lease_class));
  const permille = idle.flatMap((lease) => lease.grants).reduce((sum, grant) => sum + grant.compute_permille, 0);
  const cell = (/** @type {keyof ReturnType<typeof leaseCells>} */ key) => (/** @type {Lease} */ lease) => leaseCells(lease, now)[key];
  /** @type {Column<Lease>[]} */
  const columns = [
    { title: "lease", cell: (lease) => leaseLink(lease, context) },
    ...(pool ? [names("node", (/** @type {Lease} */ lease) => lease.node)] : []),
    names("user", (lease) => lease.owner),
    { title: "gpu", cell: cell("gpu") },
    { title: "share", right: true, cell: cell("share") },
    { title: "memory", right: true, cell: cell("memory") },
    { ...figures("idle", (lease) => -lease.idle_since), cell: cell("idle") },
    { title: "since", cell: (lease) => clock(lease.idle_since, now) },
    { title: "left", right: true, wide: true, cell: cell("left") },
    names("project", (lease) => lease.project, true),
    names("name", (lease) => lease.container_name),
    { title: "next", cell: ({ notice }) => (notice?.kind === "idle" ? name(notice.text) : "-") },
  ];
  return [
    notices.map((notice) => h("p", { class: "banner" }, notice)),
    h("p", null, idle.length ? [h("strong", null, share(permille)), " GPUs are held and run no kernel."] : "No lease is idle."),
    idle.length > 0 && table({ caption: "Leases that hold GPUs now and run no kernel", columns, rows: idle.sort((one, other) => one.idle_since - other.idle_since), key: (one) => `${one.node} ${one.id}`, changed: draw }),
    h("p", { class: "quiet" }, h("a", { href: "use?since=30d" }, "Use"), " sums idle time that is over."),
  ];
}
