import { Failure } from "../api.js";
import { h, name } from "../dom.js";
import { holding, start } from "../format.js";
import { CLASSES, quoted } from "../past.js";

/** @typedef {import("../app.js").Context} Context */
/** @typedef {{name: string, label: string, hint?: string, options?: string[], list?: string[], wide?: boolean, only?: "run" | "submit"}} Field */

export const title = "New request";
export const watch = () => ({});
const WAIT_MS = 400;
const STEPS = /** @type {Record<string, string>} */ ({
  suspend: "is taken off its GPUs with all its state, and goes on later",
  requeue: "is told, stopped, and started again later",
  stop: "is told and stopped",
});
const PLACES = ["this machine", "anywhere in the pool"];
/** These options decide when and where a request starts. */
const OFFERED = ["gpu", "gpu-memory", "gpu-compute", "preset", "class", "time", "isolation", "project", "model", "priority"];
/** @type {Field[]} */
const SIZES = [
  { name: "gpu", label: "GPUs", hint: "0.25 = a quarter of one GPU, 2 = two whole ones, 2x0.5 = half of each of two, 0.25..1 = at least a quarter" },
  { name: "gpu-memory", label: "GPU memory", hint: "by itself: 8g, 8g..24g" },
  { name: "gpu-compute", label: "GPU compute", hint: "by itself: 30%, 25%..100%" },
  { name: "time", label: "Time limit", hint: "90s, 30m, 2h, 1d" },
  { name: "class", label: "Class", options: ["", ...CLASSES], hint: "build: interactive, train: batch (usual), infer: serving" },
];
/** @type {Field[]} */
const MORE = [
  { name: "model", label: "Model", hint: "h100,a100" },
  { name: "isolation", label: "Isolation", options: ["", "shared", "separate", "exclusive", "mig"] },
  { name: "priority", label: "Priority", hint: "-100 to 100, higher first in its project" },
  { name: "name", label: "Name of the container" },
  { name: "begin", label: "Start no earlier", hint: "22:00, +2h, 2026-11-22T08:00" },
  { name: "notify", label: "Tell", hint: "mail, or URLs that the site allows" },
  { name: "array", label: "Array", hint: "0-99, 0-99%4: a job for each number", only: "submit" },
  { name: "retries", label: "Retries", hint: "after another exit code than 0", only: "submit" },
  { name: "max-wait", label: "Wait at most", hint: "10m", only: "run" },
];
const WORDS = { kind: "run", where: PLACES[0], gpu: "0.25", image: "IMAGE", docker: "--rm -it", command: "" };
/** @type {Record<string, string>} what is typed stays while other pages are shown, and never comes from an address */
let words = { ...WORDS };
/** @type {Record<string, any>} the daemon is asked about these, once nobody types */
let offered = asked(words);
let timer = 0;
let copied = "";

/** @param {any} _state @param {Context} context */
export function view(_state, context) {
  const presets = (context.memo("", "Node/Presets", {})?.presets ?? []).map((/** @type {Preset} */ preset) => preset.name);
  const projects = (context.memo("", "Projects/List", {})?.projects ?? []).map((/** @type {Project} */ project) => project.name);
  /** @type {Field[]} */
  const named = [
    { name: "preset", label: "Preset", options: ["", ...presets] },
    { name: "project", label: "Project", list: projects, hint: "usual: the first that you are in" },
  ];
  const place = [{ name: "where", label: "Where", options: PLACES }];
  return [
    h("h1", null, "New request"),
    h("p", { class: "quiet" }, "This composes a command and says what would become of it now. Nothing is asked for and nothing is booked."),
    h(
      "div",
      { class: "cards" },
      h(
        "form",
        { class: "card", onsubmit: (/** @type {Event} */ event) => event.preventDefault(), "aria-label": "The request" },
        h("div", null, kinds(context)),
        fields([...SIZES, ...named, ...(context.session.pool ? place : [])], context),
        fields([{ name: "image", label: "Image" }, { name: "docker", label: "Options of docker", wide: true, hint: '-v "$PWD:/work" -p 8888:8888' }, { name: "command", label: "Command", wide: true, hint: "python train.py" }], context),
        h("details", null, h("summary", null, "More"), fields(MORE.filter(({ only }) => !only || only === words.kind), context)),
      ),
      h("div", { class: "stack" }, command(context), offer(context)),
    ),
  ];
}

/** @param {Context} context */
function kinds({ draw }) {
  const choose = (/** @type {string} */ kind) => () => change({ kind, docker: words.docker === (kind === "run" ? "" : WORDS.docker) ? (kind === "run" ? WORDS.docker : "") : words.docker }, draw);
  const button = (/** @type {string} */ kind, /** @type {string} */ text) => h("button", { type: "button", "aria-pressed": String(words.kind === kind), onclick: choose(kind) }, text);
  return h("span", { class: "switch", role: "group", "aria-label": "Kind" }, button("run", "Run with a terminal"), button("submit", "Submit as a job"));
}

/** @param {Field[]} shown @param {Context} context */
function fields(shown, { draw }) {
  return h("div", { class: "fields" }, shown.map((field) => h("label", { class: field.wide ? "field across" : "field", key: field.name }, field.label, input(field, draw), field.hint && h("small", null, field.hint))));
}

/** @param {Field} field @param {() => void} draw */
function input({ name, options, list }, draw) {
  const oninput = (/** @type {Event} */ event) => change({ [name]: /** @type {HTMLInputElement} */ (event.target).value }, draw);
  const value = words[name] ?? "";
  if (options) return h("select", { value, onchange: oninput }, options.map((option) => h("option", { value: option }, option || "usual")));
  const choices = list?.length ? h("datalist", { id: `list-${name}` }, list.map((one) => h("option", { value: one }))) : null;
  return [h("input", { value, oninput, list: choices ? `list-${name}` : null, autocomplete: "off", spellcheck: "false" }), choices];
}

/** @param {Record<string, string>} changed @param {() => void} draw */
function change(changed, draw) {
  words = { ...words, ...changed };
  copied = "";
  clearTimeout(timer);
  timer = setTimeout(() => {
    offered = asked(words);
    draw();
  }, WAIT_MS);
  draw();
}

/** Return the request as the daemon reads it. @param {Record<string, string>} said */
function asked(said) {
  const found = Object.fromEntries(OFFERED.flatMap((option) => (said[option]?.trim() ? [[option.replace("-", "_"), said[option].trim()]] : [])));
  const { model, priority, ...rest } = found;
  const whole = rest.gpu || rest.gpu_memory || rest.gpu_compute || rest.preset ? rest : { ...rest, gpu: "1" };
  return { ...whole, ...(model ? { models: model.split(",") } : {}), ...(priority ? { priority: Number(priority) || 0 } : {}) };
}

// --- the command

/** @param {Context} context */
function commandLine({ session }) {
  const fit = [...SIZES, { name: "preset" }, { name: "project" }, ...MORE.filter(({ only }) => !only || only === words.kind)];
  const options = fit.flatMap(({ name }) => (words[name]?.trim() ? [`--${name}`, quoted(words[name].trim())] : []));
  const pool = session.pool && words.where === PLACES[1] ? ["--pool"] : [];
  return ["gpushare", words.kind, ...options, ...pool, words.docker, words.image, words.command].map((word) => word.trim()).filter(Boolean).join(" ");
}

/** @param {Context} context */
function command(context) {
  const line = commandLine(context);
  const copy = async () => {
    copied = await navigator.clipboard.writeText(line).then(() => "Copied.", () => "The browser does not let this page copy: mark the command and copy it.");
    context.draw();
  };
  return h(
    "section",
    { class: "card", "aria-label": "The command" },
    h("pre", { class: "compose", tabindex: 0 }, line),
    h("button", { class: "primary", type: "button", onclick: copy }, "Copy the command"),
    h("span", { role: "status", class: "quiet" }, copied && ` ${copied}`),
  );
}

// --- what would become of it

/** @param {Context} context */
function offer(context) {
  /** @type {OfferAnswer & {failure?: Failure} | undefined} */
  const answer = context.memo(String(Math.trunc(context.now / 10)), "Leases/Offer", offered);
  if (!answer) return h("section", { class: "card offer" }, h("p", { class: "quiet" }, "The daemon is asked…"));
  if (answer.failure) {
    const { message, hint } = answer.failure;
    return h("section", { class: "card offer never", role: "status" }, h("h2", null, "✗ This would be refused"), h("p", null, message), hint && h("p", { class: "hint" }, hint));
  }
  const waiting = answer.starts_now ? undefined : answer.waiting;
  return h(
    "section",
    { class: `card offer ${waiting ? "waits" : "now"}`, role: "status" },
    h("h2", null, waiting ? `◷ It would wait, position ${waiting.position} of ${waiting.queue_length}` : "● It would start now"),
    h("p", null, `${answer.asks}, ${answer.class}, of project `, name(answer.project), " on this machine"),
    h(
      "dl",
      { class: "facts" },
      waiting && [fact("start", start(waiting.start_from, waiting.start_to, context.now)), fact("why", `${waiting.text} (${waiting.reason})`)],
      answer.grants.length > 0 && fact("where", holding(answer.grants)),
      answer.gives_way.map((one) => fact("gives way", [`${one.lease_id} of `, name(one.owner), ` (${one.asks}, project `, name(one.project), `): ${STEPS[one.step] ?? one.step}`])),
      answer.why && fact("because", answer.why),
      answer.fits_now && fact("instead", answer.fits_now),
    ),
  );
}

/** @param {string} title @param {import("../dom.js").Child} text */
function fact(title, text) {
  return [h("dt", null, title), h("dd", null, text)];
}
