// Read the time that a question about the history covers, in the words of the command line: 7d, 2026-11-01, last-month.

export const PERIODS = ["today", "yesterday", "this-week", "last-week", "this-month", "last-month"];
const UNITS = [86400, 3600, 60, 1];
const DURATION = /^(?=\d)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?$/;
const DATE = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?$/;
const TIME_OF_DAY = /^(\d{1,2}):(\d{1,2})$/;
const DAY_MS = 86_400_000;

/**
 * Return the beginning and the end of a period, in seconds since the epoch. A word that names no period is a moment,
 * which is both. Throws an Error for words that are no time.
 * @param {string} words
 * @param {Date} now
 * @returns {[number, number]}
 */
export function readBounds(words, now) {
  if (!PERIODS.includes(words)) {
    const moment = readPast(words, now);
    return [moment, moment];
  }
  const unit = words.split("-")[1] ?? "";
  let begin = beginOf(unit, now);
  if (words.startsWith("last") || words === "yesterday") begin = beginOf(unit, new Date(+begin - 1));
  const days = unit === "week" ? 7 : unit === "month" ? 32 : 1;
  const end = beginOf(unit, new Date(+begin + days * DAY_MS + 7_200_000));
  return [+begin / 1000, +end / 1000];
}

/**
 * Return the local midnight at which the day, the week or the month of a moment begins.
 * @param {string} unit
 * @param {Date} moment
 */
export function beginOf(unit, moment) {
  const back = unit === "week" ? (moment.getDay() + 6) % 7 : 0;
  const day = unit === "month" ? 1 : moment.getDate() - back;
  return new Date(moment.getFullYear(), moment.getMonth(), day);
}

/**
 * @param {string} words
 * @param {Date} now
 */
function readPast(words, now) {
  const ago = DURATION.exec(words);
  const seconds = ago ? UNITS.reduce((sum, unit, at) => sum + unit * Number(ago[at + 1] ?? 0), 0) : 0;
  if (seconds > 0) return +now / 1000 - seconds;
  const moment = readMoment(words, now);
  if (Number.isNaN(+moment)) throw new Error(`“${words}” is not a time: say 7d, 12h, 22:00, 2026-11-01, ${PERIODS.join(", ")}`);
  // A time that is to come means that of the day before.
  if (moment > now) moment.setDate(moment.getDate() - 1);
  return +moment / 1000;
}

/**
 * @param {string} words
 * @param {Date} now
 */
function readMoment(words, now) {
  const date = DATE.exec(words);
  if (date) {
    const [year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0] = date.slice(1).map((part) => Number(part ?? 0));
    const moment = new Date(year, month - 1, day, hour, minute, second);
    return moment.getMonth() === month - 1 && hour < 24 && minute < 60 ? moment : new Date(NaN);
  }
  const [, hour, minute] = (TIME_OF_DAY.exec(words) ?? []).map(Number);
  if (hour === undefined || minute === undefined || hour > 23 || minute > 59) return new Date(NaN);
  return new Date(now.getFullYear(), now.getMonth(), now.getDate(), hour, minute);
}
