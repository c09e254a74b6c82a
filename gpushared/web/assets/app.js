// The shell: which page is shown, who looks at it, and how old what it shows is.
import { Failure, call, isAway, logout, request } from "./api.js";
import { h, name, patch } from "./dom.js";
import { Stream } from "./stream.js";
import { span } from "./format.js";
import { closeDialog } from "./dialog.js";
import * as missing from "./pages/missing.js"; // loaded beforehand, because it is shown when nothing can be loaded

/** @typedef {{user: string, uid: number, trusted: boolean, node: string, pool: string, simulated: boolean, version: string, base: string}} Session */
/** @typedef {Record<string, string>} Parameters of the path and the query: `id`, `user`... */
/**
 * @typedef {{session: Session, parameters: Parameters, pool: boolean, now: number, troubles: Record<string, Failure>,
 *   logs: Record<string, import("./stream.js").Log>, draw: () => void, go: (path: string) => void,
 *   memo: (version: string, name: string, body: object) => any}} Context
 */
/**
 * @typedef {{title: string | ((parameters: Parameters) => string),
 *   watch: (parameters: Parameters, context: Context) => Record<string, [string, object]>,
 *   view: (state: any, context: Context) => import("./dom.js").Child}} Page
 */

const TICK_MS = 1000;
const DRAW_MS = 5000; // without a change, for the ages that the page shows
const MAX_FETCHED = 200;
const RELOAD_MS = 10_000;
const AGAIN_MS = 2000;
const LINKS = [
  { path: "", title: "GPUs" },
  { path: "queue", title: "Queue" },
  { path: "use", title: "Use" },
  { path: "history", title: "History" },
  { path: "idle", title: "Idle" },
  { path: "nodes", title: "Nodes", shown: () => session.pool },
  { path: "audit", title: "Audit", shown: () => session.trusted },
  { path: "submit", title: "New request" },
];

/** @type {Session} */
let session = { user: "", uid: -1, trusted: false, node: "", pool: "", simulated: false, version: "", base: "" };
/** @type {Page | null} */
let page = null;
/** @type {Stream | null} */
let stream = null;
/** @type {Parameters} */
let parameters = {};
/** @type {Failure | null} */
let failure = null;
let route = "";
let visits = 0;
let again = 0;
let drawing = false;
let drawnAt = 0;
let clockAhead = 0;
/** @type {Map<string, {version: string, answer: any}>} */
const fetched = new Map();

const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

// --- which page

/** @param {URL} url @returns {[string, Parameters]} */
function parse(url) {
  const [word = "", id] = url.pathname.slice(new URL(document.baseURI).pathname.length).split("/").map(decodeURIComponent);
  /** @type {Parameters} */
  const found = Object.fromEntries(url.searchParams);
  return [word, id === undefined ? found : { ...found, id }];
}

/** @param {boolean} [isAgain] nobody moved: the page tries again by itself */
async function visit(isAgain = false) {
  const visitNumber = ++visits;
  clearTimeout(again);
  [route, parameters] = parse(new URL(location.href));
  stream?.close();
  stream = null;
  fetched.clear();
  closeDialog();
  try {
    const loading = import(`./pages/${route === "" ? "machine" : /^[a-z]+$/.test(route) ? route : "missing"}.js`);
    loading.catch(() => {}); // what fails first is told below
    if (route !== "login") await learnSession();
    const module = await loading;
    if (visitNumber !== visits) return;
    page = module;
    failure = null;
    follow();
  } catch (error) {
    if (visitNumber !== visits) return;
    if (error instanceof Failure && error.status === 401) return ended(error);
    if (!(error instanceof Failure) && reload()) return;
    page = missing;
    failure = error instanceof Failure ? error : null;
    if (failure && isAway(failure)) again = setTimeout(() => visit(true), AGAIN_MS);
  }
  draw();
  if (visitNumber > 1 && !isAgain) {
    scrollTo(0, 0);
    place("main").focus({ preventScroll: true });
  }
}

/** Load the shell anew where a script is gone, as after an update of the daemon; not again and again. */
function reload() {
  const last = Number(sessionStorage.getItem("reloaded"));
  if (Date.now() - last < RELOAD_MS) return false;
  sessionStorage.setItem("reloaded", String(Date.now()));
  location.reload();
  return true;
}

function follow() {
  stream?.close();
  stream = page && new Stream(page.watch(parameters, context()), draw, ended);
}

async function learnSession() {
  const answer = await request("session");
  const sent = Date.parse(answer.headers.get("date") ?? "");
  const ahead = sent ? sent - Date.now() : 0;
  clockAhead = Math.abs(ahead) > 5000 ? ahead : 0;
  session = await answer.json();
}

/** @param {Failure} error */
function ended(error) {
  toLogin(`${session.user ? "Your session ended: " : ""}${error.message}`);
}

/** @param {string} why */
function toLogin(why) {
  session = { ...session, user: "" };
  const back = route === "login" ? "" : location.href;
  history.replaceState({ why, back }, "", new URL("login", document.baseURI));
  visit();
}

/** @param {string} path */
function go(path) {
  history.pushState(null, "", new URL(path, document.baseURI));
  visit();
}

/** @param {MouseEvent} event */
function followLink(event) {
  const link = /** @type {Element} */ (event.target).closest?.("a");
  const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  if (link.classList.contains("skip")) {
    event.preventDefault();
    place("main").focus();
  } else if (link.href.startsWith(document.baseURI)) {
    event.preventDefault();
    go(link.href);
  }
}

// --- what is shown

function isPool() {
  return Boolean(session.pool) && (!session.node || localStorage.getItem("pool") === "1");
}

/** @returns {Context} */
function context() {
  return {
    session,
    parameters,
    pool: isPool(),
    now: (Date.now() + clockAhead) / 1000,
    troubles: stream?.troubles ?? {},
    logs: stream?.logs ?? {},
    draw,
    go,
    memo,
  };
}

/**
 * Return the newest answer to a call, and make the call if `version` is another one than that of the answer.
 * @param {string} version @param {string} name @param {object} body
 */
function memo(version, name, body) {
  const key = `${name} ${JSON.stringify(body)}`;
  const known = fetched.get(key);
  if (known?.version !== version) {
    if (fetched.size >= MAX_FETCHED) fetched.clear();
    fetched.set(key, { version, answer: known?.answer });
    call(name, body).then(
      (answer) => remember(key, version, answer),
      (error) => remember(key, version, known?.answer ?? { failure: error }),
    );
  }
  return known?.answer;
}

/** @param {string} key @param {string} version @param {any} answer */
function remember(key, version, answer) {
  if (fetched.get(key)?.version !== version) return;
  fetched.set(key, { version, answer });
  draw();
}

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawnAt = Date.now();
    const now = context();
    patch(place("header"), header(now));
    if (page) {
      const title = typeof page.title === "string" ? page.title : page.title(parameters);
      document.title = [title, now.pool ? session.pool : session.node || session.pool, "gpushare"].filter(Boolean).join(" · ");
      patch(place("main"), troubles(now), page.view({ ...stream?.answers, failure }, now));
    }
    patch(place("footer"), footer());
  });
}

function tick() {
  if (document.hidden) return;
  if (Date.now() - drawnAt >= DRAW_MS) draw();
  else patch(place("header"), header(context()));
}

/** @param {Context} now */
function troubles(now) {
  const refusal = stream?.failure;
  if (refusal && !isAway(refusal)) return h("p", { class: "banner bad", role: "status" }, refusal.message, refusal.hint && ` (${refusal.hint})`);
  const parts = Object.entries(now.troubles).filter(([name]) => name !== "log"); // a log says so in its own place
  const found = new Map(parts.map(([, trouble]) => [trouble.message, trouble]));
  return [...found.values()].map((trouble) =>
    h("p", { class: "banner", role: "status" }, h("strong", null, "This part is missing: "), trouble.message, trouble.hint && ` (${trouble.hint})`),
  );
}

/** @param {Context} now */
function header(now) {
  return h(
    "div",
    { class: "bar" },
    h("a", { class: "home", href: "." }, h("strong", null, "gpushare"), " ", session.user && name(now.pool ? session.pool : session.node || session.pool)),
    session.simulated && h("span", { class: "chip", title: "no real hardware is leased here" }, "SIMULATED"),
    session.user && session.pool && session.node && poolSwitch(now),
    session.user &&
      h("nav", { "aria-label": "Pages" },
        LINKS.filter((link) => link.shown?.() ?? true).map((link) =>
          h("a", { href: link.path || ".", "aria-current": link.path === route ? "page" : null }, link.path || !now.pool ? link.title : "Pool"))),
    badge(),
    themeSwitch(),
    session.user && h("span", { class: "who", title: "you" }, name(session.user), session.trusted && " (admin)", " ", h("button", { class: "plain", onclick: leave }, "Log out")),
  );
}

/** @param {Context} now */
function poolSwitch(now) {
  const choose = (/** @type {string} */ word) => () => {
    localStorage.setItem("pool", word);
    follow();
    draw();
  };
  const button = (/** @type {string} */ title, /** @type {boolean} */ on, /** @type {string} */ word) =>
    h("button", { "aria-pressed": String(on), onclick: choose(word) }, title);
  return h("span", { class: "switch", role: "group", "aria-label": "What is shown" }, button("This machine", !now.pool, "0"), button("Pool", now.pool, "1"));
}

function badge() {
  if (!stream?.watches || !session.user) return null;
  const age = stream.heardAt ? span((Date.now() - stream.heardAt) / 1000) : "";
  const words = { live: "Live", connecting: stream.heardAt ? "Reconnecting" : "Connecting", paused: "Paused" }[stream.status];
  const old = stream.status !== "live" && age ? h("span", { class: "age" }, ` what you see is ${age} old`) : null;
  return h("span", { class: `badge ${stream.status}` }, h("span", { role: "status" }, h("span", { "aria-hidden": "true" }, stream.status === "live" ? "● " : "○ "), words), old);
}

function themeSwitch() {
  const theme = localStorage.getItem("theme") ?? "system";
  const next = { system: "dark", dark: "light", light: "system" }[theme] ?? "system";
  const choose = () => {
    localStorage.setItem("theme", next);
    showTheme();
    draw();
  };
  return h("button", { class: "plain theme", "aria-label": `Theme: ${theme}; change to ${next}`, title: `Theme: ${theme}; change to ${next}`, onclick: choose }, { system: "◐", dark: "☾", light: "☀" }[theme]);
}

function showTheme() {
  const theme = localStorage.getItem("theme");
  if (theme && theme !== "system") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  dispatchEvent(new Event("theme"));
}

async function leave() {
  await logout().catch(() => {});
  toLogin("You logged out.");
}

function footer() {
  return h("p", null, session.simulated && h("strong", null, "SIMULATED GPUs: no real hardware is leased here. "), session.version && `gpushared ${session.version}`);
}

showTheme();
addEventListener("popstate", () => visit());
document.addEventListener("click", followLink);
setInterval(tick, TICK_MS);
visit();
