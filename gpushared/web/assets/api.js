// Make the calls of the command line, as JSON.

/** An answer that is an error, with the hint that the command line shows. */
export class Failure extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {string} hint */
  constructor(status, code, message, hint) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

const NO_DAEMON = "the daemon does not answer";

/** Return true if the daemon did not answer at all, as while it starts again. @param {Failure} failure */
export function isAway({ status }) {
  return status === 0 || status >= 500;
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<Response>} */
export async function request(path, options) {
  let answer;
  try {
    answer = await fetch(new URL(path, document.baseURI), { cache: "no-store", ...options });
  } catch (error) {
    if (/** @type {Error} */ (error).name === "AbortError") throw error;
    throw new Failure(0, "unavailable", NO_DAEMON, "is `gpushare web` still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const hint = (said.details ?? []).map((/** @type {any} */ detail) => detail.hint ?? "").join(" ");
  throw new Failure(answer.status, said.code ?? "", said.message ?? `the daemon answers ${answer.status}`, hint);
}

/** @param {string} path @param {object} body */
function post(path, body) {
  return request(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
}

/**
 * Make a call such as `Leases/List`. Throws Failure.
 * @param {string} name
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export async function call(name, body = {}) {
  return (await post(`gpushare.v1.${name}`, body)).json();
}

/** @param {{code: string} | {token: string}} proof */
export async function login(proof) {
  await post("login", proof);
}

export async function logout() {
  await post("logout", {});
}
