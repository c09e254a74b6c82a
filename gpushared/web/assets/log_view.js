// Show the last lines of a log as they come.
import { h, printable } from "./dom.js";

const NEAR_END = 40;

/** @type {WeakSet<Element>} logs that somebody scrolled up in, so that new lines do not move them */
const scrolledUp = new WeakSet();

/** @param {import("./stream.js").Log | undefined} log @param {import("./api.js").Failure | undefined} trouble @param {string} command */
export function logView(log, trouble, command) {
  const lines = log ? [...log.lines, ...(log.begun ? [log.begun] : [])] : [];
  const end = (/** @type {HTMLElement} */ element) => {
    const text = printable(lines.join("\n"));
    if (element.textContent !== text) element.textContent = text;
    if (!scrolledUp.has(element)) element.scrollTop = element.scrollHeight;
  };
  const scroll = (/** @type {Event} */ event) => {
    const element = /** @type {HTMLElement} */ (event.target);
    if (element.scrollHeight - element.scrollTop - element.clientHeight > NEAR_END) scrolledUp.add(element);
    else scrolledUp.delete(element);
  };
  return h("section", null,
    h("h2", { id: "log" }, "Last lines of its log"),
    trouble
      ? h("p", { class: "quiet" }, trouble.message, trouble.hint && ` (${trouble.hint})`)
      : lines.length
        ? h("pre", { class: "log", tabindex: 0, role: "log", "aria-live": "off", "aria-labelledby": "log", own: end, onscroll: scroll })
        : h("p", { class: "quiet" }, "No line was written yet."),
    h("p", { class: "quiet" }, log?.isOver && "It has ended. ", "In a terminal: ", h("code", null, command)));
}
