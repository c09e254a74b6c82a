// Compose a command, and say what would become of its request. This page changes nothing.
import { facts, h, name } from "../dom.js";
import { holding, start } from "../format.js";
import { CLASSES, quoted } from "../past.js";

/** @typedef {{name: string, label: string, hint?: string, options?: string[], list?: string[], wide?: boolean, only?: string}} Field */

export const title = "New request";
export const watch = () => ({});
const TYPING_MS = 400;
const OFFER_SECONDS = 10;
const STEPS = /** @type {Record<string, string>} */ ({
  suspend: "is taken off its GPUs with all its state, and goes on later",
  requeue: "is told, stopped, and started again later",
  stop: "is told and stopped",
});
/** These options decide when and where a request starts. */
const OFFERED = ["gpu", "gpu-memory", "gpu-compute", "preset", "class", "time", "isolation", "project"];
/** @type {Field[]} */
const SIZES = [
  { name: "gpu", label: "GPUs", hint: "0.25 = a quarter of one, 2 = two whole ones, 2x0.5 = half of each of two, 0.25..1 = at least a quarter" },
  { name: "gpu-memory", label: "GPU memory", hint: "by itself: 8g, 8g..24g" },
  { name: "gpu-compute", label: "GPU compute", hint: "by itself: 30%, 25%..100%" },
  { name: "time", label: "Time limit", hint: "90s, 30m, 2h, 1d" },
  { name: "class", label: "Class", options: CLASSES, hint: "build: interactive, train: batch, infer: serving" },
];
/** @type {Field[]} */
const MORE = [
  { name: "isolation", label: "Isolation", options: ["shared", "separate", "exclusive", "mig"] },
  { name: "model", label: "Model", hint: "h100,a100" },
  { name: "begin", label: "Start no earlier", hint: "22:00, +2h, 2026-11-22T08:00" },
  { name: "name", label: "Name of the container" },
  { name: "array", label: "Array", hint: "0-99: a job for each number", only: "submit" },
  { name: "retries", label: "Retries", hint: "after another exit code than 0", only: "submit" },
  { name: "max-wait", label: "Wait at most", hint: "10m", only: "run" },
];
/** @type {Field[]} */
const DOCKER = [
  { name: "image", label: "Image" },
  { name: "docker", label: "Options of docker", wide: true, hint: '--rm -it, -v "$PWD:/work", -p 8888:8888' },
  { name: "command", label: "Command", wide: true, hint: "python train.py" },
];
/** @type {Words} what is typed stays while other pages are shown, and never comes from an address */
let words = { kind: "run", gpu: "0.25" };
/** @type {Words} the daemon is asked about these, once nobody types */
let offered = words;
let timer = 0;
let copied = "";

/** @param {any} _ @param {Context} context */
export function view(_, context) {
  const named = (/** @type {string} */ call, /** @type {string} */ field) => ((context.session.node && context.memo("", call, {})?.[field]) || []).map((/** @type {{name: string}} */ one) => one.name);
  const other = (/** @type {string | undefined} */ only) => only && only !== words.kind;
  /** @type {Field[]} */
  const first = [...SIZES, { name: "preset", label: "Preset", options: named("Node/Presets", "presets") }, { name: "project", label: "Project", list: named("Projects/List", "projects"), hint: "usual: the first that you are in" }];
  const rest = MORE.filter(({ only }) => !other(only));
  return [
    h("h1", null, "New request"),
    h("p", { class: "quiet" }, "This composes a command, and says what would become of it now. Nothing is asked for, and nothing is booked."),
    h("div", { class: "cards" },
      h("form", { class: "card", onsubmit: (/** @type {Event} */ event) => event.preventDefault(), "aria-label": "The request" },
        switches(context),
        fields(first, context),
        fields(DOCKER, context),
        h("details", null, h("summary", null, "More"), fields(rest, context))),
      h("div", { class: "stack" }, command([...first, ...rest], context), context.session.node && offer(context))),
  ];
}

/** @param {Context} context */
function switches({ session, draw }) {
  const button = (/** @type {string} */ text, /** @type {Words} */ chosen) => {
    const on = Object.entries(chosen).every(([name, word]) => (words[name] ?? "") === word);
    return h("button", { type: "button", "aria-pressed": String(on), onclick: () => change(chosen, draw) }, text);
  };
  return h("p", null,
    h("span", { class: "switch", role: "group", "aria-label": "Kind" }, button("Run with a terminal", { kind: "run" }), button("Submit as a job", { kind: "submit" })),
    " ",
    session.pool && session.node && h("span", { class: "switch", role: "group", "aria-label": "Place" }, button("This machine", { pool: "" }), button("Anywhere in the pool", { pool: "1" })));
}

/** @param {Field[]} shown @param {Context} context */
function fields(shown, { draw }) {
  return h("div", { class: "fields" }, shown.map((field) => h("label", { class: field.wide ? "field across" : "field", key: field.name }, field.label, input(field, draw), field.hint && h("small", null, field.hint))));
}

/** @param {Field} field @param {() => void} draw */
function input({ name, options, list = [] }, draw) {
  const oninput = (/** @type {Event} */ event) => change({ [name]: /** @type {HTMLInputElement} */ (event.target).value }, draw);
  const value = words[name] ?? "";
  if (options) return h("select", { value, oninput }, ["", ...options].map((option) => h("option", { value: option }, option || "usual")));
  const id = list.length ? `list-${name}` : null;
  return [h("input", { value, oninput, list: id, autocomplete: "off", spellcheck: "false" }), id && h("datalist", { id }, list.map((one) => h("option", { value: one })))];
}

/** @param {Words} changed @param {() => void} draw */
function change(changed, draw) {
  words = { ...words, ...changed };
  copied = "";
  clearTimeout(timer);
  timer = setTimeout(() => {
    offered = words;
    draw();
  }, TYPING_MS);
  draw();
}

/** @param {Field[]} shown @param {Context} context */
function command(shown, { session, draw }) {
  const options = shown.flatMap(({ name }) => (words[name]?.trim() ? [`--${name}`, quoted(words[name].trim())] : []));
  const line = ["gpushare", words.kind, ...options, session.pool && (words.pool || !session.node) && "--pool", words.docker, words.image || "IMAGE", words.command].filter(Boolean).join(" ");
  const copy = async () => {
    copied = await navigator.clipboard?.writeText(line).then(() => "Copied.", () => "") || "The browser does not let this page copy: mark the command and copy it.";
    draw();
  };
  return h("section", { class: "card", "aria-label": "The command" },
    h("pre", { class: "compose", tabindex: 0 }, line),
    h("button", { class: "primary", type: "button", onclick: copy }, "Copy the command"),
    h("span", { role: "status", class: "quiet" }, copied && ` ${copied}`));
}

/** @param {Words} said @returns {object} LeaseRequest of leases.proto */
function requestOf(said) {
  const found = Object.fromEntries(OFFERED.map((option) => [option.replace("-", "_"), said[option]?.trim()]));
  const whole = found.gpu || found.gpu_memory || found.gpu_compute || found.preset ? found : { ...found, gpu: "1" };
  return { ...whole, models: said.model?.split(",").map((model) => model.trim()).filter(Boolean) };
}

/** @param {Context} context */
function offer({ memo, now }) {
  /** @type {OfferAnswer & {failure?: import("../api.js").Failure} | undefined} */
  const answer = memo(String(Math.trunc(now / OFFER_SECONDS)), "Leases/Offer", requestOf(offered));
  const card = (/** @type {string} */ kind, /** @type {string} */ heading, /** @type {Child[]} */ ...rest) => h("section", { class: `card offer ${kind}`, role: "status" }, h("h2", null, heading), rest);
  if (!answer) return card("", "The daemon is asked…");
  if (answer.failure) return card("never", "✗ It would be refused", h("p", null, answer.failure.message), h("p", { class: "hint" }, answer.failure.hint));
  const it = words.pool ? "On this machine it" : "It";
  const waiting = answer.starts_now ? undefined : answer.waiting;
  return card(waiting ? "waits" : "now", waiting ? `◷ ${it} would wait, position ${waiting.position} of ${waiting.queue_length}` : `● ${it} would start now`,
    h("p", null, `${answer.asks}, ${answer.class}, of project `, name(answer.project), " on this machine"),
    facts([
      ["start", waiting && start(waiting.start_from, waiting.start_to, now)],
      ["why", waiting && `${waiting.text} (${waiting.reason})`],
      ["where", answer.grants.length > 0 && holding(answer.grants)],
      ...answer.gives_way.map((one) => /** @type {[string, Child]} */ (["gives way", [`${one.lease_id} of `, name(one.owner), ` (${one.asks}, project `, name(one.project), `): ${STEPS[one.step] ?? one.step}`]])),
      ["because", answer.why],
      ["instead", answer.fits_now],
    ]));
}
