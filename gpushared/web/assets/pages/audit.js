// Show who changed what, and who was refused what, as `gpushare audit` does.
import { h, name } from "../dom.js";
import { stamp } from "../format.js";
import { Asked, address, filterForm, inTerminal } from "../past.js";
import { readBounds } from "../period.js";
import { figures, names, table } from "../table.js";

export const title = "Audit";
const LIMIT = 100;
const LONG_ID = /\b([0-9a-f]{12})[0-9a-f]{52}\b/g;
const OWN = ["FOUND", "LOST"]; // the daemon writes these lines by itself, as answers to nobody
const FILTERS = [
  { label: "User", name: "user" },
  { label: "From", name: "since", usual: "the beginning", hint: "2h, 22:00, 2026-11-20" },
  { label: "About", name: "container", usual: "anything", hint: "a container, image, lease or GPU" },
  { label: "Lines", name: "refused", options: ["refused"] },
];

const asked = new Asked(({ user, container, refused, since, before }, { now }) => ({
  user, container, refused: Boolean(refused), since: since ? readBounds(since, new Date(now * 1000))[0] : 0, before: Math.trunc(Number(before)) || 0, limit: LIMIT,
}));
export const { watch } = asked;

/** @param {any} _ @param {Context} context */
export function view(_, context) {
  const { parameters, session } = context;
  const { before, refused, ...words } = parameters;
  return [
    h("h1", null, session.node ? "Audit of this machine" : "Audit of the coordinator"),
    h("p", { class: "quiet" }, `There is a line for each ${session.trusted ? "" : "of your "}request${session.trusted ? "" : "s"} that changed something or was refused, the newest first.`),
    filterForm("audit", FILTERS, context),
    asked.show(context, (request) => [["Audit/List", request]], (_, answer) => page(answer, parameters)),
    inTerminal(refused ? "audit --refused" : "audit", words, !session.node),
  ];
}

/** @param {ListAuditResponse} answer @param {Words} words */
function page({ lines, trouble }, words) {
  /** @type {Column<AuditLine>[]} */
  const columns = [
    { title: "time", cell: (line) => stamp(line.at) },
    names("user", (line) => line.user),
    { title: "status", right: true, cell: status },
    { title: "call", cell: (line) => name(callOf(line), "mono long") },
    { title: "said", cell: (line) => h("span", { class: "said" }, [Number(line.more) > 0 && `and ${line.more} more like it`, line.text].filter(Boolean).join("; ") || "-") },
    names("code", (line) => line.code, true),
    names("program", (line) => line.executable, true),
    figures("pid", (line) => line.pid || "", undefined, true),
    { title: "digest", wide: true, cell: (line) => h("span", { class: "mono" }, line.digest.slice(0, 12) || "-") },
  ];
  return [
    trouble && h("p", { class: "banner bad", role: "alert" }, trouble),
    table({ caption: "Changes and refusals", columns, rows: [...lines].reverse(), key: (line) => line.number, empty: "There is no such line." }),
    h("p", null,
      words.before && [h("a", { href: address("audit", { ...words, before: "" }) }, "Newest lines"), " "],
      lines.length === LIMIT && h("a", { href: address("audit", { ...words, before: lines[0].number }) }, "Older lines")),
  ];
}

/** @param {AuditLine} line */
function status({ status, method, code }) {
  const words = String(status || (OWN.includes(method) ? "-" : "gone"));
  return code ? h("span", { class: "bad" }, `✗ ${words}`) : words;
}

/** @param {AuditLine} line */
function callOf({ method, endpoint, name: named }) {
  const called = `${method} ${endpoint.replace(LONG_ID, "$1")}`;
  return !named || endpoint.includes(named) ? called : `${called} ${named}`;
}
