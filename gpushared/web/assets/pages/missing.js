// Say that there is no such page, or that nothing can be shown while the daemon is away.
import { isAway } from "../api.js";
import { h } from "../dom.js";

export const title = "Not found";
export const watch = () => ({});

/** @param {{failure?: import("../api.js").Failure | null}} state */
export function view({ failure }) {
  if (!failure) return h("section", null, h("h1", null, "There is no such page"), h("p", null, h("a", { href: "." }, "To the GPUs")));
  return h("section", null,
    h("h1", null, isAway(failure) ? "The daemon does not answer" : "The daemon refuses this page"),
    h("p", { role: "status" }, failure.message, failure.hint && ` (${failure.hint})`),
    isAway(failure) ? h("p", { class: "quiet" }, "The page tries again by itself.") : h("p", null, h("a", { href: "." }, "To the GPUs")));
}
