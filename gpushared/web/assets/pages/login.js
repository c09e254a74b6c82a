// Turn the code of a login link into a session, or say how to get a link.
import { login, request } from "../api.js";
import { h } from "../dom.js";

export const title = "Log in";
export const watch = () => ({});

/** @type {{busy?: boolean, error?: import("../api.js").Failure, read?: boolean}} */
let attempt = {};
let token = "";

/** @param {any} _state @param {import("../app.js").Context} context */
export function view(_state, context) {
  const code = location.hash.slice(1);
  if (code && !attempt.busy) {
    history.replaceState(history.state, "", location.pathname);
    enter({ code }, context);
  }
  const { why } = history.state ?? {};
  return h("section", { class: "card narrow" },
    h("h1", null, "Log in"),
    why && h("p", { class: "banner", role: "status" }, why),
    attempt.error && h("p", { class: "banner bad", role: "alert" }, attempt.error.message, attempt.error.hint && ` (${attempt.error.hint})`),
    attempt.busy
      ? h("p", { role: "status" }, "Logging in…")
      : [
          h("p", null, "Type ", h("code", null, "gpushare web"), " in a terminal on the machine, and open the link that it prints. A link works once, for five minutes."),
          h("details", null, h("summary", null, "I have an API token of the pool"), tokenForm(context)),
        ]);
}

/** @param {import("../app.js").Context} context */
function tokenForm(context) {
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    enter({ token: token.trim() }, context);
  };
  return h("form", { onsubmit: submit },
    h("label", { class: "field" }, "Token", h("input", { type: "password", autocomplete: "off", required: true, oninput: (/** @type {any} */ event) => (token = event.target.value) })),
    h("button", { class: "primary" }, "Log in"));
}

/** @param {{code: string} | {token: string}} proof @param {import("../app.js").Context} context */
async function enter(proof, context) {
  attempt = { busy: true };
  context.draw();
  try {
    // A link that was opened again in the same browser leads on: its session is there.
    await login(proof).catch((error) => request("session").catch(() => Promise.reject(error)));
    attempt = {};
    context.go(history.state?.back || ".");
  } catch (error) {
    attempt = { error: /** @type {import("../api.js").Failure} */ (error) };
    context.draw();
  }
}
