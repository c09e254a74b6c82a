// What the pages of the past share: the time and the filters that they ask for, and the accounts that they show.
import { strip } from "./charts.js";
import { h } from "./dom.js";
import { fixed, hours } from "./format.js";
import { PERIODS, readBounds } from "./period.js";

/** @typedef {import("./app.js").Context} Context */
/** @typedef {import("./app.js").Parameters} Parameters */
/** @typedef {{since: number, until: number, user?: string, project?: string, class?: string, pool?: boolean}} Window */
/** @typedef {{label: string, name: string, options?: string[], hint?: string, usual?: string}} Filter */

export const USUAL_SINCE = "7d";
export const CLASSES = ["build", "train", "infer"];
const SHORTCUTS = ["today", "7d", "30d", "this-month", "last-month"];
const GIB_HOUR_MIB_SECONDS = 1024 * 3600;
/** @type {Filter[]} */
export const TIME = [
  { label: "From", name: "since", usual: USUAL_SINCE, hint: "7d, 2026-11-01, last-month" },
  { label: "To", name: "until", usual: "now" },
];
/** @type {Filter[]} */
export const OWNERS = [
  { label: "User", name: "user" },
  { label: "Project", name: "project" },
  { label: "Class", name: "class", options: CLASSES },
];

/**
 * Return the window that the words of the address ask for, as the command line reads them. A period that only `since`
 * names is meant as a whole. Throws an Error that says which words are wrong.
 * @param {Parameters} words @param {Context} context @returns {Window}
 */
export function windowOf(words, { now, pool }) {
  const moment = new Date(now * 1000);
  const word = words.since || USUAL_SINCE;
  const [since, end] = readBounds(word, moment);
  const until = words.until ? readBounds(words.until, moment)[1] : PERIODS.includes(word) ? end : now;
  if (since >= until) throw new Error("the time ends before it begins: choose an earlier beginning or a later end");
  const names = OWNERS.map(({ name }) => [name, words[name]]).filter(([, value]) => value);
  return { since, until, ...Object.fromEntries(names), ...(pool ? { pool } : {}) };
}

/** Asks once a visit, so that what is shown does not move while somebody reads it. @template Asked */
export class Asked {
  /** @param {(parameters: Parameters, context: Context) => Asked} read */
  constructor(read) {
    this.read = read;
    /** @type {{asked?: Asked, error?: string}} */
    this.found = {};
    /** The pages' `watch`: what is asked is no part of the stream. @type {(parameters: Parameters, context: Context) => {}} */
    this.watch = (parameters, context) => {
      try {
        this.found = { asked: this.read(parameters, context) };
      } catch (error) {
        this.found = { error: /** @type {Error} */ (error).message };
      }
      return {};
    };
  }
}

/**
 * Show a form that puts its words into the address.
 * @param {string} path @param {Filter[]} filters @param {Context} context
 */
export function filterForm(path, filters, { parameters, go }) {
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    go(address(path, Object.fromEntries([...form].map(([name, value]) => [name, String(value).trim()]))));
  };
  return h(
    "form",
    { class: "filters", onsubmit: submit, role: "search", "aria-label": "What is shown" },
    filters.map((filter) => h("label", { class: "field" }, filter.label, field(filter, parameters[filter.name] ?? ""))),
    h("button", { class: "primary" }, "Show"),
  );
}

/** @param {Filter} filter @param {string} value */
function field({ name, options, hint, usual }, value) {
  if (!options) return h("input", { name, value, size: 12, placeholder: usual ?? "all", title: hint, autocomplete: "off", spellcheck: "false" });
  const first = usual ? [] : [h("option", { value: "" }, "all")];
  return h("select", { name, value: value || (usual ?? "") }, first, options.map((option) => h("option", { value: option }, option)));
}

/** Return an address with its words, without empty ones. @param {string} path @param {Parameters} words */
export function address(path, words) {
  const query = new URLSearchParams(Object.entries(words).filter(([, word]) => word));
  return query.size ? `${path}?${query}` : path;
}

/** Show links to the times that are asked for most. @param {string} path @param {Context} context */
export function shortcuts(path, { parameters }) {
  const { until: _, ...words } = parameters;
  const shown = parameters.until ? "" : parameters.since || USUAL_SINCE;
  return h(
    "nav",
    { class: "periods", "aria-label": "Times" },
    SHORTCUTS.map((since) => h("a", { href: address(path, { ...words, since }), "aria-current": since === shown ? "true" : null }, since.replace("-", " "))),
  );
}

/**
 * Show the command that answers the same.
 * @param {string} command @param {Parameters} words @param {Context} context
 */
export function inTerminal(command, words, { pool }) {
  const options = Object.entries(words).flatMap(([name, word]) => (word ? [`--${name}`, quoted(word)] : []));
  return h("p", { class: "quiet command" }, "In a terminal: ", h("code", null, ["gpushare", command, ...options, ...(pool ? ["--pool"] : [])].join(" ")));
}

/** Return a word as a shell takes it. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Show why there is no answer. @param {{message: string, hint?: string}} failure */
export function refused(failure) {
  return h("p", { class: "banner bad", role: "alert" }, failure.message, failure.hint ? ` (${failure.hint})` : null);
}

/** @param {Context} context */
export function ofOthers({ session }) {
  return session.trusted ? null : h("p", { class: "quiet" }, "Of others you see what the site allows.");
}

/** Write GiB hours. @param {string} mibSeconds */
export function memoryHours(mibSeconds) {
  return figure(Number(mibSeconds) / GIB_HOUR_MIB_SECONDS);
}

/** @param {number} amount */
function figure(amount) {
  return amount ? fixed(amount, amount >= 10 ? 1 : amount >= 0.1 ? 2 : 3) : "0";
}

/** @type {{name: string, tone: import("./charts.js").Tone, field: "well_used_gpu_ms" | "too_big_gpu_ms" | "idle_gpu_ms" | "unseen_gpu_ms"}[]} */
export const SPLIT = [
  { name: "well used", tone: "used", field: "well_used_gpu_ms" },
  { name: "too big", tone: "big", field: "too_big_gpu_ms" },
  { name: "idle", tone: "idle", field: "idle_gpu_ms" },
  { name: "not seen", tone: "unseen", field: "unseen_gpu_ms" },
];

/** Show how what was held was used. @param {Account} account @param {number} [whole] in GPU milliseconds */
export function split(account, whole = Number(account.held_gpu_ms)) {
  const parts = SPLIT.map(({ name, tone, field }) => ({ name, tone, amount: Number(account[field]), text: `${hours(account[field])} GPU hours` }));
  return strip(parts, whole);
}

/** Show figures, each with its name below. @param {[string, import("./dom.js").Child][]} figures */
export function figures(figures) {
  return h("dl", { class: "figures" }, figures.map(([name, words]) => h("div", null, h("dt", null, name), h("dd", null, words))));
}
