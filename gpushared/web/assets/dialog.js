// Ask once more before something changes, with the command that stands for it.
import { h, patch } from "./dom.js";

/** @typedef {Record<string, string>} Values of the fields, by their names */
/** @typedef {{name: string, label: string, value: string, hint: string}} Field */
/**
 * @typedef {{title: string, text?: string, yes: string, fields?: Field[], danger?: boolean,
 *   command: (values: Values) => string, run: (values: Values) => Promise<string>}} Question
 */

/** @type {Question | null} */
let question = null;
/** @type {Values} */
let values = {};
/** @type {{busy?: boolean, done?: string, error?: import("./api.js").Failure}} */
let outcome = {};

const element = () => /** @type {HTMLDialogElement} */ (document.getElementById("dialog"));

/** @param {Question} asked */
export function ask(asked) {
  question = asked;
  values = Object.fromEntries((asked.fields ?? []).map((field) => [field.name, field.value]));
  outcome = {};
  draw();
  if (!element().open) element().showModal();
}

export function closeDialog() {
  element().close();
  question = null;
}

function draw() {
  if (!question) return;
  const { title, text, yes, fields = [], danger, command } = question;
  const { busy, done, error } = outcome;
  patch(
    element(),
    h("form", { onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      text && !done && h("p", null, text),
      !done && fields.map(input),
      h("p", null, done ? "This was: " : "This is: ", h("code", null, command(values))),
      h("div", { role: "status" },
        busy && h("p", { class: "quiet" }, "The daemon is asked…"),
        done && h("p", { class: "good" }, `Done: ${done}`),
        error && h("p", { class: "bad" }, h("strong", null, "Refused: "), error.message, error.hint && ` (${error.hint})`)),
      h("p", { class: "buttons" },
        h("button", { type: "button", onclick: closeDialog }, done ? "Close" : "Leave it"),
        !done && h("button", { class: danger ? "primary danger" : "primary", disabled: busy }, yes))),
  );
}

/** @param {Field} field */
function input({ name, label, hint }) {
  const changed = (/** @type {any} */ event) => {
    values = { ...values, [name]: event.target.value };
    draw();
  };
  return h("label", { class: "field" }, label, h("input", { name, value: values[name], oninput: changed, autocomplete: "off" }), h("small", null, hint));
}

/** @param {Event} event */
async function submit(event) {
  event.preventDefault();
  const asked = question;
  if (!asked || outcome.busy || outcome.done) return;
  outcome = { busy: true };
  draw();
  const result = await asked.run(values).then((done) => ({ done }), (error) => ({ error }));
  if (question !== asked) return;
  outcome = result;
  draw();
  // The button that was pressed may be gone, and what was refused is typed anew.
  /** @type {HTMLElement | null} */ (element().querySelector("error" in result ? "input, button" : "button"))?.focus();
}
