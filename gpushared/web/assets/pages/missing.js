import { h } from "../dom.js";

export const title = "Not found";
export const watch = () => ({});

/** @param {any} state */
export function view({ failure }) {
  return h(
    "section",
    null,
    h("h1", null, failure ? "The daemon does not answer" : "There is no such page"),
    failure ? h("p", null, failure.message, failure.hint && ` (${failure.hint})`) : null,
    h("p", null, h("a", { href: "." }, failure ? "Try again" : "To the GPUs")),
  );
}
