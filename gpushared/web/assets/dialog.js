// Ask once more before something changes, with the command that stands for it.
import { h } from "./dom.js";

/** @typedef {import("./api.js").Failure} Failure */
/** @typedef {{name: string, label: string, value: string, hint?: string, type?: string}} Field */
/**
 * @typedef {{title: string, text?: string, yes: string, fields?: Field[], danger?: boolean,
 *   command: (values: Record<string, string>) => string, run: (values: Record<string, string>) => Promise<string>}} Question
 */

/** @type {Question | null} */
let question = null;
/** @type {Record<string, string>} */
let values = {};
/** @type {{busy?: boolean, done?: string, error?: Failure}} */
let outcome = {};

const element = () => /** @type {HTMLDialogElement} */ (document.getElementById("dialog"));

/** @param {Question} asked @param {() => void} draw */
export function ask(asked, draw) {
  question = asked;
  values = Object.fromEntries((asked.fields ?? []).map((field) => [field.name, field.value]));
  outcome = {};
  draw();
  if (!element().open) element().showModal();
}

export function closeDialog() {
  if (element().open) element().close();
  question = null;
}

/** @param {() => void} draw */
export function dialogTree(draw) {
  if (!question) return null;
  const { title, text, yes, fields = [], danger, command } = question;
  return h(
    "form",
    { method: "dialog", onsubmit: (/** @type {Event} */ event) => submit(event, draw) },
    h("h2", { id: "dialog-title" }, title),
    text && h("p", null, text),
    !outcome.done && fields.map((field) => input(field, draw)),
    h("p", { class: "command" }, h("span", null, outcome.done ? "This was: " : "This is: "), h("code", null, command(values))),
    h(
      "div",
      { "aria-live": "polite" },
      outcome.busy && h("p", { class: "quiet" }, "The daemon is asked…"),
      outcome.done && h("p", { class: "good" }, `Done: ${outcome.done}`),
      outcome.error && h("p", { class: "bad" }, h("strong", null, "Refused: "), outcome.error.message, outcome.error.hint && h("span", { class: "hint" }, ` ${outcome.error.hint}`)),
    ),
    h(
      "p",
      { class: "buttons" },
      h("button", { type: "button", onclick: closeDialog }, outcome.done ? "Close" : "Leave it"),
      !outcome.done && h("button", { class: danger ? "primary danger" : "primary", disabled: outcome.busy }, yes),
    ),
  );
}

/** @param {Field} field @param {() => void} draw */
function input(field, draw) {
  const changed = (/** @type {Event} */ event) => {
    values = { ...values, [field.name]: /** @type {HTMLInputElement} */ (event.target).value };
    draw();
  };
  return h("label", { class: "field" }, field.label, h("input", { name: field.name, value: values[field.name], oninput: changed, autocomplete: "off" }), field.hint && h("small", null, field.hint));
}

/** @param {Event} event @param {() => void} draw */
async function submit(event, draw) {
  event.preventDefault();
  const asked = question;
  if (!asked || outcome.busy || outcome.done) return;
  outcome = { busy: true };
  draw();
  const result = await asked.run(values).then((done) => ({ done }), (error) => ({ error }));
  if (question !== asked) return;
  outcome = result;
  draw();
}
