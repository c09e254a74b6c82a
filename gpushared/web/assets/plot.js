// Draw one chart with uPlot, which is loaded when the first chart is there.

const HEIGHT = 190;
const AXIS_WIDTH = 58;
const AXIS_HEIGHT = 40;
const DAY_SECONDS = 86400;
const BAR_STEPS = [1, 2, 7, 14, 28, 91, 364].map((days) => days * DAY_SECONDS);
const TILE = 8;
/** @type {Partial<Record<Tone, number[]>>} */
const DASHES = { held: [10, 4], peak: [2, 3], past: [6, 4] };
/** @type {Partial<Record<Tone, (tile: CanvasRenderingContext2D) => void>>} */
const PATTERNS = {
  big: (tile) => {
    tile.lineWidth = 3;
    [-TILE, 0, TILE].forEach((from) => (tile.moveTo(from - 1, TILE + 1), tile.lineTo(from + TILE + 1, -1)));
    tile.stroke();
  },
  idle: (tile) => [0, 4].forEach((at) => tile.fillRect(at, at, 3, 3)),
  unseen: (tile) => (tile.fillRect(0, 0, TILE, 1), tile.fillRect(0, 0, 1, TILE)),
};
/** @type {WeakMap<HTMLElement, Plot>} */
const plots = new WeakMap();
/** @type {Promise<any> | undefined} */
let library;

/** Load uPlot, which is no module: it sets a global name. */
function load() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("vendor/uPlot.iife.min.js", import.meta.url).href;
    script.onload = () => resolve(/** @type {any} */ (window).uPlot);
    script.onerror = reject;
    document.head.append(script);
  });
  return library;
}

/** Keeps the chart of an element: draws it anew for other figures, another width and another theme. */
export class Plot {
  /** Return the element's plot. @param {HTMLElement} element */
  static of(element) {
    const plot = plots.get(element) ?? new Plot(element);
    plots.set(element, plot);
    return plot;
  }

  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    /** @type {Chart | null} */
    this.chart = null;
    this.shown = "";
    this.at = 0;
    /** @type {any} */
    this.drawing = null;
    this.ground = document.createElement("div");
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    element.append(this.ground, this.readout);
    element.addEventListener("keydown", (event) => this.key(event));
    this.draw = this.draw.bind(this);
    this.watcher = new ResizeObserver(() => this.element.clientWidth !== this.drawing?.width && this.draw());
    this.watcher.observe(element);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.draw);
    addEventListener("theme", this.draw);
  }

  /** @param {Chart} chart */
  show(chart) {
    const shown = JSON.stringify(chart);
    if (shown === this.shown) return;
    this.shown = shown;
    this.chart = chart;
    this.tell(chart.times.length - 1);
    this.draw();
  }

  end() {
    this.chart = null;
    this.watcher.disconnect();
    this.dark.removeEventListener("change", this.draw);
    removeEventListener("theme", this.draw);
    this.drawing?.destroy();
  }

  async draw() {
    const uPlot = await load();
    const width = this.element.clientWidth;
    if (!this.chart || !width) return;
    this.drawing?.destroy();
    this.drawing = new uPlot(this.options(uPlot, this.chart, width), columnsOf(this.chart), this.ground);
  }

  /** Say the figures at a time. @param {number} at the number of the time */
  tell(at) {
    const chart = this.chart;
    if (!chart || !(at in chart.times)) return;
    this.at = at;
    const figures = chart.series.map((one) => `${one.name} ${chart.write(one.values[at]) || "-"}`);
    const words = `${chart.writeTime(chart.times[at], at)}: ${figures.join(", ")}`;
    this.readout.textContent = words;
    this.element.setAttribute("aria-valuenow", String(at));
    this.element.setAttribute("aria-valuetext", words);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = (this.chart?.times.length ?? 0) - 1;
    const step = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last })[event.key];
    if (step === undefined || !this.chart) return;
    event.preventDefault();
    this.tell(Math.min(last, Math.max(0, this.at + step)));
    this.drawing?.setCursor({ left: this.drawing.valToPos(this.chart.times[this.at], "x"), top: 0 }, false);
  }

  /** Return a custom property as the browser resolves it for the theme. @param {string} name */
  color(name) {
    this.readout.style.color = `var(${name})`;
    const { color } = getComputedStyle(this.readout);
    this.readout.style.color = "";
    return color;
  }

  /** @param {any} uPlot @param {Chart} chart @param {number} width */
  options(uPlot, { form, times, series, suffix = "" }, width) {
    const line = { stroke: this.color("--line"), width: 1 };
    const axis = { stroke: this.color("--quiet"), font: `12px ${getComputedStyle(this.element).fontFamily}`, grid: line, ticks: { ...line, size: 4 } };
    const bars = form === "bars" && uPlot.paths.bars({ size: [0.72, 44] });
    const shown = series.map((one) => this.series(one.tone, bars));
    return {
      width,
      height: HEIGHT,
      padding: [10, 10, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false }, y: false, points: { show: !bars } },
      scales: {
        x: bars ? { range: () => withMargin(times) } : {},
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, most > 0 ? most * 1.06 : 1] },
      },
      axes: [
        { ...axis, size: AXIS_HEIGHT, values: timesBelow, ...(bars ? { incrs: BAR_STEPS } : {}) },
        { ...axis, size: AXIS_WIDTH, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map((value) => value + suffix) },
      ],
      series: [{}, ...(bars ? shown.reverse() : shown)],
      hooks: { setCursor: [(/** @type {any} */ drawing) => drawing.cursor.left >= 0 && this.tell(drawing.cursor.idx)] },
    };
  }

  /** @param {Tone} tone @param {any} bars */
  series(tone, bars) {
    const color = this.color(`--tone-${tone}`);
    const dash = DASHES[tone];
    const points = { show: () => false }; // a single sample between gaps is a point all the same
    if (!bars) return { stroke: color, width: 2, dash, points, fill: dash ? undefined : color.replace(/^rgb\((.*)\)$/, "rgba($1, .16)") };
    return { stroke: color, width: 1, points, paths: bars, fill: this.fill(tone, color) };
  }

  /** @param {Tone} tone @param {string} color */
  fill(tone, color) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = TILE;
    const tile = canvas.getContext("2d");
    const pattern = PATTERNS[tone];
    if (!tile || !pattern) return color;
    tile.fillStyle = this.color("--card");
    tile.fillRect(0, 0, TILE, TILE);
    tile.fillStyle = tile.strokeStyle = color;
    pattern(tile);
    return tile.createPattern(canvas, "repeat");
  }
}

/** Return what uPlot draws: sums are drawn from the highest on, each over the one before. @param {Chart} chart */
function columnsOf({ form, times, series, unit }) {
  const columns = series.map((one) => one.values.map((value) => (value === null ? null : value / unit)));
  if (form === "lines") return [times, ...columns];
  const sums = columns.map((_, last) => times.map((__, at) => columns.slice(0, last + 1).reduce((sum, column) => sum + Number(column[at]), 0)));
  return [times, ...sums.reverse()];
}

/** Leave half a step on both sides, so that the outer bars are whole. @param {number[]} times */
function withMargin(times) {
  const [first, last] = [times[0], times[times.length - 1]];
  const step = times.length > 1 ? (last - first) / (times.length - 1) : DAY_SECONDS;
  return [first - step / 2, last + step / 2];
}

/**
 * Write the times below a chart: days, or times of day with the day where it changes.
 * @param {any} _ @param {number[]} times @param {number} __ @param {number} ___ @param {number} step
 */
function timesBelow(_, times, __, ___, step) {
  let before = "";
  return times.map((at) => {
    const local = new Date((at - 60 * new Date(at * 1000).getTimezoneOffset()) * 1000).toISOString();
    const [day, time] = [local.slice(5, 10), local.slice(11, 16)];
    const words = step >= DAY_SECONDS ? day : day === before ? time : `${time}\n${day}`;
    before = day;
    return words;
  });
}
