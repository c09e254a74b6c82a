import { h } from "../dom.js";

export const title = "GPUs";

/** @param {import("../app.js").Parameters} _parameters @param {import("../app.js").Context} context */
export function watch(_parameters, { pool }) {
  return { gpus: ["Gpus/List", { pool }], leases: ["Leases/List", { pool }] };
}

/** @param {{gpus?: ListGpusResponse, leases?: ListLeasesResponse}} state @param {import("../app.js").Context} _context */
export function view({ gpus, leases }, _context) {
  if (!gpus || !leases) return h("p", { class: "quiet" }, "Loading…");
  return h("h1", null, `${gpus.gpus.length} GPUs, ${leases.leases.length} leases`);
}
