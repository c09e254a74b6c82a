import { h, name } from "../dom.js";
import { stamp } from "../format.js";
import { Asked, address, filterForm, inTerminal, refused } from "../past.js";
import { readBounds } from "../period.js";
import { table } from "../table.js";

/** @typedef {import("../app.js").Context} Context */

export const title = "Audit";
const LIMIT = 100;
const LONG_ID = /\b([0-9a-f]{12})[0-9a-f]{52}\b/g;
const OWN = ["FOUND", "LOST"]; // the daemon writes these lines by itself, as answers to nobody
const FILTERS = [
  { label: "User", name: "user" },
  { label: "From", name: "since", usual: "the beginning", hint: "2h, 22:00, 2026-11-20" },
  { label: "About", name: "container", usual: "anything", hint: "a container, image, lease or GPU" },
  { label: "Lines", name: "refused", options: ["all", "refused"], usual: "all" },
];

const asked = new Asked((words, { now }) => ({
  user: words.user,
  container: words.container,
  refused: words.refused === "refused",
  since: words.since ? readBounds(words.since, new Date(now * 1000))[0] : 0,
  before: Math.trunc(Number(words.before)) || 0,
  limit: LIMIT,
}));
export const { watch } = asked;

/** @param {any} _state @param {Context} context */
export function view(_state, context) {
  const { before: _, refused: kind, ...words } = context.parameters;
  return [
    h("h1", null, context.session.node ? "Audit of this machine" : "Audit of the coordinator"),
    h("p", { class: "quiet" }, "There is a line for each request that changed something or was refused, the newest first."),
    filterForm("audit", FILTERS, context),
    page(context),
    inTerminal(kind === "refused" ? "audit --refused" : "audit", words, { ...context, pool: false }),
  ];
}

/** @param {Context} context */
function page(context) {
  const { parameters, session } = context;
  if (!asked.found.asked) return refused({ message: asked.found.error ?? "" });
  /** @type {ListAuditResponse & {failure?: Error} | undefined} */
  const answer = context.memo("", "Audit/List", asked.found.asked);
  if (!answer) return h("p", { class: "quiet" }, "Loading…");
  if (answer.failure) return refused(answer.failure);
  const newest = [...answer.lines].reverse();
  const oldest = answer.lines[0];
  return [
    answer.trouble && h("p", { class: "banner bad", role: "alert" }, answer.trouble),
    session.trusted ? null : h("p", { class: "quiet" }, "You see your own lines."),
    lines(newest),
    h(
      "p",
      { class: "pages" },
      parameters.before ? [h("a", { href: address("audit", { ...parameters, before: "" }) }, "Newest lines"), " "] : null,
      oldest && newest.length === LIMIT ? h("a", { href: address("audit", { ...parameters, before: oldest.number }) }, "Older lines") : h("span", { class: "quiet" }, "There are no older lines."),
    ),
  ];
}

/** @param {AuditLine[]} newest */
function lines(newest) {
  /** @type {import("../table.js").Column<AuditLine>[]} */
  const columns = [
    { title: "time", cell: (line) => stamp(line.at) },
    { title: "user", cell: (line) => name(line.user) },
    { title: "status", right: true, cell: (line) => statusOf(line) },
    { title: "call", cell: (line) => name(callOf(line), "mono long") },
    { title: "said", cell: (line) => h("span", { class: "said" }, saidOf(line)) },
    { title: "code", wide: true, cell: (line) => line.code || "-" },
    { title: "program", wide: true, cell: (line) => name(line.executable ? `${line.executable} (${line.pid})` : "-") },
    { title: "digest", wide: true, cell: (line) => h("span", { class: "mono" }, line.digest.slice(0, 12) || "-") },
  ];
  return table({ caption: "Changes and refusals", columns, rows: newest, key: (line) => line.number, empty: "No line is like this." });
}

/** @param {AuditLine} line */
function statusOf(line) {
  const words = String(line.status || (OWN.includes(line.method) ? "-" : "gone"));
  return line.code ? h("span", { class: "bad" }, `✗ ${words}`) : words;
}

/** @param {AuditLine} line */
function callOf(line) {
  const called = `${line.method} ${line.endpoint.replace(LONG_ID, "$1")}`;
  return !line.name || line.endpoint.includes(line.name) ? called : `${called} ${line.name}`;
}

/** @param {AuditLine} line */
function saidOf(line) {
  const more = Number(line.more) ? `and ${line.more} more like it` : "";
  return [more, line.text].filter(Boolean).join("; ") || "-";
}
