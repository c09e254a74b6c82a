// Follow the daemon: full answers first, then what changes, over one stream.
import { Failure, request } from "./api.js";

const SILENT_MS = 40_000; // two heartbeats and a half
const FIRST_WAIT_MS = 500;
const MAX_WAIT_MS = 15_000;
const LOG_LINES = 1000;

/** @typedef {{name: string, answer?: any, set?: any, lists?: any, lines?: string[], begun?: string, first?: boolean, end?: boolean, code?: string, message?: string, hint?: string}} Event */

/** `begun` is a line that has not ended; `isOver` after the last one. @typedef {{lines: string[], begun: string, isOver: boolean}} Log */

/** Keeps the answers of one page's calls as they are now. */
export class Stream {
  /**
   * @param {Record<string, [string, object]>} watch
   * @param {() => void} changed is called after each change
   * @param {(failure: Failure) => void} refused is called where trying again is of no use
   */
  constructor(watch, changed, refused) {
    /** @type {Record<string, any>} */
    this.answers = {};
    /** @type {Record<string, Failure>} */
    this.troubles = {};
    /** @type {Record<string, Log>} */
    this.logs = {};
    /** @type {"live" | "connecting" | "paused"} */
    this.status = "connecting";
    this.heardAt = 0;
    /** @type {Failure | null} */
    this.failure = null;
    this.path = `stream?watch=${encodeURIComponent(JSON.stringify(watch))}`;
    this.changed = changed;
    this.refused = refused;
    this.lastId = "";
    this.wait = FIRST_WAIT_MS;
    /** @type {AbortController | null} */
    this.connection = null;
    this.timer = 0;
    this.onVisible = () => (document.hidden ? this.pause() : this.resume());
    this.watches = Object.keys(watch).length > 0;
    if (!this.watches) return;
    document.addEventListener("visibilitychange", this.onVisible);
    this.onVisible();
  }

  close() {
    document.removeEventListener("visibilitychange", this.onVisible);
    this.pause();
  }

  pause() {
    clearTimeout(this.timer);
    this.connection?.abort();
    this.connection = null;
    this.status = "paused";
    this.changed();
  }

  resume() {
    if (this.connection) return;
    this.status = "connecting";
    this.changed();
    this.connect();
  }

  async connect() {
    const connection = new AbortController();
    this.connection = connection;
    try {
      // A daemon ends each stream after some minutes, and means it to be opened again: that is no trouble.
      await this.read(connection);
    } catch (error) {
      if (this.connection !== connection) return;
      this.status = "connecting";
      this.failure = error instanceof Failure ? error : null;
    }
    if (this.connection !== connection) return;
    connection.abort();
    this.connection = null;
    this.changed();
    if (this.failure?.status === 401) return this.refused(this.failure);
    this.timer = setTimeout(() => this.connect(), this.wait * (0.5 + Math.random() / 2));
    this.wait = Math.min(MAX_WAIT_MS, this.wait * 2);
  }

  /** @param {AbortController} connection */
  async read(connection) {
    const headers = this.lastId ? { "last-event-id": this.lastId } : undefined;
    const answer = await request(this.path, { headers, signal: connection.signal });
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    while (reader) {
      const silence = setTimeout(() => connection.abort(), SILENT_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(silence));
      if (done || this.connection !== connection) return;
      this.heard();
      const blocks = (text + value).replaceAll("\r\n", "\n").split("\n\n");
      text = blocks.pop() ?? "";
      blocks.forEach((block) => this.take(block));
      this.changed();
    }
  }

  heard() {
    this.status = "live";
    this.failure = null;
    this.heardAt = Date.now();
    this.wait = FIRST_WAIT_MS;
  }

  /** @param {string} block one event as it is sent */
  take(block) {
    /** @type {Record<string, string>} */
    const fields = {};
    for (const line of block.split("\n")) {
      const [, name, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
      if (name) fields[name] = fields[name] === undefined ? value : `${fields[name]}\n${value}`;
    }
    if (fields.id !== undefined) this.lastId = fields.id;
    if (fields.data) this.apply(fields.event, JSON.parse(fields.data));
  }

  /** @param {string} kind @param {Event} event */
  apply(kind, event) {
    const name = event.name;
    if (kind === "trouble") {
      this.troubles[name] = new Failure(0, event.code ?? "", event.message ?? "", event.hint ?? "");
      return;
    }
    delete this.troubles[name];
    if (kind === "state") this.answers[name] = event.answer;
    if (kind === "change") this.answers[name] = changed(this.answers[name] ?? {}, event);
    if (kind === "log") this.logs[name] = longer(this.logs[name], event);
  }
}

/** @param {Log | undefined} log @param {Event} event @returns {Log} */
function longer(log, { first, lines = [], begun, end = false }) {
  const before = first || !log ? { lines: [], begun: "" } : log;
  return { lines: [...before.lines, ...lines].slice(-LOG_LINES), begun: begun ?? before.begun, isOver: end };
}

/**
 * Return the answer with an event's changes.
 * @param {any} answer
 * @param {Event} event
 */
export function changed(answer, event) {
  const next = { ...answer, ...event.set };
  for (const [field, { key, set = [], order }] of Object.entries(event.lists ?? {})) {
    const items = new Map([...(answer[field] ?? []), ...set].map((item) => [item[key], item]));
    next[field] = (order ?? [...items.keys()]).map((/** @type {string} */ one) => items.get(one)).filter(Boolean);
  }
  // No answer has a null: it is a field that is gone.
  return Object.fromEntries(Object.entries(next).filter(([, value]) => value !== null));
}
