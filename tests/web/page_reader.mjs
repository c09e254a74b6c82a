// Reads questions from the standard input, and writes what the page's modules answer, without a browser.
import { pathToFileURL } from "node:url";

const [, , assets] = process.argv;
const load = (path) => import(pathToFileURL(`${assets}/${path}`));
let text = "";
for await (const part of process.stdin) text += part;

/** What a person reads of a tree. */
function words(tree) {
  if (typeof tree === "string") return tree;
  return tree.children.map(words).join("");
}

function all(tree, tag) {
  if (typeof tree === "string") return [];
  return [...(tree.tag === tag ? [tree] : []), ...tree.children.flatMap((child) => all(child, tag))];
}

const asked = {
  async bounds({ cases }) {
    const { readBounds } = await load("period.js");
    return cases.map(([said, now]) => {
      try {
        return readBounds(said, new Date(now * 1000));
      } catch {
        return null;
      }
    });
  },
  async page({ page, words: parameters = {}, now, pool = false, trusted = true, node = "dgx", answers, state = {} }) {
    const { watch, view } = await load(`pages/${page}.js`);
    const calls = [];
    const memo = (_, name, request) => (calls.push([name, request]), answers[`${name} ${request.window?.since ?? ""} ${request.by ?? ""}`] ?? answers[name]);
    const context = { parameters, now, pool, memo, session: { node, pool: pool ? "lab" : "", trusted, user: "root", uid: 0 }, draw() {}, go() {}, troubles: {}, logs: {} };
    const watched = watch(parameters, context);
    return { calls, watched, ...read((await load("dom.js")).h("main", null, view(state, context))) };
  },
  async pieces({ values }) {
    return (await load("plot.js")).piecesOf(values);
  },
  async range({ form, times }) {
    return (await load("plot.js")).rangeOf({ form, times });
  },
  async life({ report }) {
    const { useOverLife, chartsOf } = await load("use_over_life.js");
    const { tableOf } = await load("charts.js");
    return read((await load("dom.js")).h("main", null, useOverLife(report), chartsOf(report).map(tableOf)));
  },
};

function read(tree) {
  const tables = all(tree, "table").map((table) => ({
    caption: words(all(table, "caption")[0]),
    rows: all(all(table, "tbody")[0], "tr").map((row) => row.children.map(words)),
    titles: all(all(table, "thead")[0], "th").map(words),
  }));
  const facts = all(tree, "dt").map(words);
  const values = all(tree, "dd").map(words);
  return { tables, paragraphs: all(tree, "p").map(words), texts: all(tree, "pre").map(words), headings: all(tree, "h1").map(words), facts: facts.map((fact, at) => [fact, values[at]]), code: all(tree, "code").map(words) };
}

const questions = JSON.parse(text);
const found = [];
for (const { ask, ...question } of questions) found.push(await asked[ask](question));
process.stdout.write(JSON.stringify(found));
