// What the pages of the past share: the time and the filters that they ask for, and the accounts that they show.
import { strip } from "./charts.js";
import { h } from "./dom.js";
import { hours } from "./format.js";
import { PERIODS, readBounds } from "./period.js";

const USUAL_SINCE = "7d";
const SHORTCUTS = ["today", "7d", "30d", "this-month", "last-month"];
export const CLASSES = ["build", "train", "infer"];
/** @type {Filter[]} */
export const TIME = [{ label: "From", name: "since", usual: USUAL_SINCE, hint: "7d, 2026-11-01, last-month" }, { label: "To", name: "until", usual: "now" }];
/** @type {Filter[]} */
export const OWNERS = [{ label: "User", name: "user" }, { label: "Project", name: "project" }, { label: "Class", name: "class", options: CLASSES }];
/** @type {{name: string, tone: Tone, field: "well_used_gpu_ms" | "too_big_gpu_ms" | "idle_gpu_ms" | "unseen_gpu_ms"}[]} */
export const SPLIT = [
  { name: "well used", tone: "used", field: "well_used_gpu_ms" },
  { name: "too big", tone: "big", field: "too_big_gpu_ms" },
  { name: "idle", tone: "idle", field: "idle_gpu_ms" },
  { name: "not seen", tone: "unseen", field: "unseen_gpu_ms" },
];

/**
 * Return the window that the words of the address ask for, as the command line reads them. A period that only `since`
 * names is meant as a whole. Throws an Error that says which words are wrong.
 * @param {Words} words @param {{now: number, pool: boolean}} context @returns {PastWindow}
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

/** Keeps what a page asks, which is read once a visit: what is shown does not move while somebody reads it. @template Found */
export class Asked {
  /** @param {(words: Words, context: Context) => Found} read */
  constructor(read) {
    /** @type {Found | undefined} */
    this.found = undefined;
    this.error = "";
    /** The page's own: nothing of the past is streamed. @type {(words: Words, context: Context) => {}} */
    this.watch = (words, context) => {
      try {
        this.found = read(words, context);
      } catch (error) {
        this.found = undefined;
        this.error = /** @type {Error} */ (error).message;
      }
      return {};
    };
  }

  /**
   * Show the answers to calls, once all are there, or why there are none.
   * @param {Context} context @param {(found: Found) => [string, object][]} calls
   * @param {(found: Found, ...answers: any[]) => Child} show @returns {Child}
   */
  show({ memo }, calls, show) {
    const { found } = this;
    if (!found) return refused({ message: this.error });
    const answers = calls(found).map(([name, request]) => memo("", name, request));
    const failed = answers.find((answer) => answer?.failure);
    if (failed) return refused(failed.failure);
    return answers.every(Boolean) ? show(found, ...answers) : h("p", { class: "quiet" }, "Loading…");
  }
}

/** Show a form that puts its words into the address. @param {string} path @param {Filter[]} filters @param {Context} context */
export function filterForm(path, filters, { parameters, go }) {
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const words = [...new FormData(/** @type {HTMLFormElement} */ (event.target))].map(([name, value]) => [name, String(value).trim()]);
    go(address(path, Object.fromEntries(words)));
  };
  return h("form", { class: "filters", onsubmit: submit, role: "search", "aria-label": "What is shown" },
    filters.map((filter) => h("label", { class: "field" }, filter.label, field(filter, parameters[filter.name] ?? ""))),
    h("button", { class: "primary" }, "Show"));
}

/** @param {Filter} filter @param {string} value */
function field({ name, options, hint, usual }, value) {
  if (!options) return h("input", { name, value, size: 12, placeholder: usual ?? "all", title: hint, autocomplete: "off", spellcheck: "false" });
  return h("select", { name, value: value === usual ? "" : value }, [usual ? "" : "all", ...options].map((option) => option && h("option", { value: option === (usual ?? "all") ? "" : option }, option)));
}

/** Return an address with its words, without empty ones. @param {string} path @param {Words} words */
export function address(path, words) {
  const query = String(new URLSearchParams(Object.entries(words).filter(([, word]) => word)));
  return query ? `${path}?${query}` : path;
}

/** Show links to the times that are asked for most. @param {string} path @param {Context} context */
export function shortcuts(path, { parameters }) {
  const { until, ...words } = parameters;
  const shown = until ? "" : words.since || USUAL_SINCE;
  return h("nav", { class: "periods", "aria-label": "Times" },
    SHORTCUTS.map((since) => h("a", { href: address(path, { ...words, since }), "aria-current": since === shown ? "true" : null }, since.replace("-", " "))));
}

/** Show the command that answers the same. @param {string} command @param {Words} words @param {boolean} [pool] */
export function inTerminal(command, words, pool) {
  const options = Object.entries(words).flatMap(([name, word]) => (word ? [`--${name}`, quoted(word)] : []));
  return h("p", { class: "quiet command" }, "In a terminal: ", h("code", null, ["gpushare", command, ...options, pool && "--pool"].filter(Boolean).join(" ")));
}

/** Return a word as a shell takes it. @param {string} word */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Show why there is no answer. @param {{message: string, hint?: string}} failure */
function refused({ message, hint }) {
  return h("p", { class: "banner bad", role: "alert" }, message, hint && ` (${hint})`);
}

/** @param {Context} context */
export function ofOthers({ session }) {
  return !session.trusted && h("p", { class: "quiet" }, "Of others you see what the site allows.");
}

/** Show how what was held was used. @param {Account} account @param {number} [whole] in GPU milliseconds */
export function split(account, whole = Number(account.held_gpu_ms)) {
  return strip(SPLIT.map((part) => ({ ...part, amount: Number(account[part.field]), text: `${hours(account[part.field])} GPU hours` })), whole);
}
