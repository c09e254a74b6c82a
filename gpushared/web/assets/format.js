// Write figures exactly as the command line writes them (gpushared/cli/text.py, ps.py, gpus.py).

export const MISSING = "-";
const UNITS = /** @type {[string, number][]} */ ([["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20]]);
const SPANS = /** @type {[string, number][]} */ ([["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]);
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/** @typedef {number | string | null | undefined} Figure 64-bit integers come as strings */

/**
 * Round as Python does: a figure in the middle goes to the even one.
 * @param {number} value
 * @param {number} places
 */
export function fixed(value, places) {
  if (Math.abs((value * 2 ** (places + 1)) % 2) !== 1) return value.toFixed(places);
  const below = Math.floor(value * 10 ** places);
  return ((below % 2 ? below + 1 : below) / 10 ** places).toFixed(places);
}

/** @param {number} value */
function general(value) {
  return String(Number(value.toPrecision(6)));
}

/** @param {number} size */
function unitOf(size) {
  return UNITS.find(([, one]) => size >= one) ?? UNITS[2];
}

/** @param {number} size @param {number} one */
function figure(size, one) {
  return size % one === 0 ? String(size / one) : fixed(size / one, 1);
}

/** Return `19.8 GiB`. @param {Figure} size */
export function memory(size) {
  if (size === null || size === undefined) return MISSING;
  const [unit, one] = unitOf(Number(size));
  return `${figure(Number(size), one)} ${unit}`;
}

/** Return `3.2/19.8 GiB`, both in the unit of the second. @param {Figure} used @param {Figure} of */
export function memoryPair(used, of) {
  const [unit, one] = unitOf(Number(of));
  const left = used === null || used === undefined ? MISSING : figure(Number(used), one);
  return `${left}/${figure(Number(of), one)} ${unit}`;
}

/** Return `0.25`; 1000 is `1`. @param {number} permille */
export function share(permille) {
  return general(permille / 1000);
}

/** @param {number} permille @param {number} limit */
export function compute(permille, limit) {
  return limit <= permille ? share(permille) : `${general(permille / 10)}..${general(limit / 10)}%`;
}

/** Return `42s`, `5m`, `1h30m`, `2d4h`; a past moment is `0s`. @param {number | null | undefined} seconds */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return MISSING;
  const left = Math.max(0, Math.trunc(seconds));
  const place = SPANS.findIndex(([, size]) => left >= size);
  if (place < 0) return "0s";
  const [unit, size] = SPANS[place];
  const [below, belowSize] = place < 2 ? SPANS[place + 1] : ["", 1];
  const rest = below ? Math.floor((left % size) / belowSize) : 0;
  return `${Math.floor(left / size)}${unit}${rest ? `${rest}${below}` : ""}`;
}

/** @param {number} figure */
function two(figure) {
  return String(figure).padStart(2, "0");
}

/** Return `14:05` today, `Tue 14:05` on another day. @param {number} moment @param {number} now */
export function clock(moment, now) {
  const then = new Date(moment * 1000);
  const time = `${two(then.getHours())}:${two(then.getMinutes())}`;
  return then.toDateString() === new Date(now * 1000).toDateString() ? time : `${DAYS[then.getDay()]} ${time}`;
}

/** Return `14:05` today, `11-22 14:05` in this year, else `2025-11-22`. @param {number} moment @param {number} now */
export function dayAndClock(moment, now) {
  const then = new Date(moment * 1000);
  const today = new Date(now * 1000);
  const date = `${two(then.getMonth() + 1)}-${two(then.getDate())}`;
  if (then.getFullYear() !== today.getFullYear()) return `${then.getFullYear()}-${date}`;
  const time = `${two(then.getHours())}:${two(then.getMinutes())}`;
  return then.toDateString() === today.toDateString() ? time : `${date} ${time}`;
}

/** Return `2026-11-22 14:05:07`. @param {number} moment */
export function stamp(moment) {
  const then = new Date(moment * 1000);
  const date = `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())}`;
  return `${date} ${[then.getHours(), then.getMinutes(), then.getSeconds()].map(two).join(":")}`;
}

/**
 * Return `about 14:05 (12-25 min)`, `by 14:30 (25 min)`, `not before 14:05 (12 min)` or `unknown`; 0 is not known.
 * @param {number} from
 * @param {number} to
 * @param {number} now
 */
export function start(from, to, now) {
  const [first, last] = [from, to].map((moment) => Math.max(0, Number(fixed((moment - now) / 60, 0))));
  if (!from) return to ? `by ${clock(to, now)} (${last} min)` : "unknown";
  if (!to) return `not before ${clock(from, now)} (${first} min)`;
  return `about ${clock(from, now)} (${last <= first ? first : `${first}-${last}`} min)`;
}

/** Return `37%`. @param {number | null | undefined} ratio */
export function percent(ratio) {
  return ratio === null || ratio === undefined ? "" : `${fixed(ratio * 100, 0)}%`;
}

/** Write GPU milliseconds as GPU hours: `0.25`, `31.5`. @param {Figure} gpuMs */
export function hours(gpuMs) {
  const amount = Number(gpuMs ?? 0) / 3_600_000;
  return amount ? fixed(amount, amount >= 10 ? 1 : amount >= 0.1 ? 2 : 3) : "0";
}

/** @param {Figure} ms */
export function lasted(ms) {
  return span(Number(ms ?? 0) / 1000);
}

/**
 * Word a lease's state, and the outcome of one that is over: `finished(3)`.
 * @param {Lease} lease
 */
export function leaseState(lease) {
  const { outcome } = lease;
  if (lease.state !== "ended" || !outcome) return lease.state;
  return outcome.exit_code === undefined ? outcome.kind : `${outcome.kind}(${outcome.exit_code})`;
}

/** @param {Job} job */
export function jobState(job) {
  return job.exit_code ? `${job.state}(${job.exit_code})` : job.state;
}

/** Return `0.25`, `2x0.5`; whole GPUs are counted. @param {Grant[]} grants */
export function grantedShare(grants) {
  if (!grants.length) return "";
  const one = grants[0].compute_permille;
  if (one === 1000) return String(grants.length);
  const words = compute(one, grants[0].compute_limit_permille);
  return grants.length === 1 ? words : `${grants.length}x${words}`;
}

/** Return a GPU's number, and `?` for one that the daemon does not see. @param {number} index */
export function gpuNumber(index) {
  return index < 0 ? "?" : String(index);
}

/** @param {Grant} grant */
export function gpuOf(grant) {
  return grant.gpu_label || gpuNumber(grant.gpu_index);
}

/** Return `0.25 on GPU 0 (NVIDIA H100), 19.7 GiB`. @param {Grant[]} grants */
export function holding(grants) {
  const gpus = grants.map((grant) => `GPU ${gpuOf(grant)} (${grant.gpu_name})`).join(", ");
  return `${grantedShare(grants)} on ${gpus}, ${memory(grantedBytes(grants))}`;
}

/** @param {Grant[]} grants */
export function grantedBytes(grants) {
  return grants.reduce((sum, grant) => sum + Number(grant.memory_bytes), 0);
}

/** Return `0.25, 19.8 GiB`. @param {Gpu} gpu */
export function freeSize(gpu) {
  return `${share(gpu.compute_free_permille)}, ${memory(gpu.memory_free_bytes)}`;
}

/** Return `1 lease`, `2 leases`. @param {number} number @param {string} word */
export function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}
