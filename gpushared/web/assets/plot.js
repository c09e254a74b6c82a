// Draw one chart with uPlot, which is loaded when the first chart is there.

/** @typedef {import("./charts.js").Chart} Chart */
/** @typedef {import("./charts.js").Tone} Tone */
/** @typedef {CanvasRenderingContext2D} Tile */

const HEIGHT = 190;
const AXIS_WIDTH = 58;
const DAY_SECONDS = 86400;
const TILE = 8;
/** @type {Record<Tone, {pattern?: (tile: Tile) => void, dash?: number[]}>} */
const TONES = {
  used: {},
  big: { pattern: stripes },
  idle: { pattern: dots },
  unseen: { pattern: grid },
  held: { dash: [10, 4] },
  peak: { dash: [2, 3] },
  past: { dash: [6, 4] },
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
    script.onerror = () => reject(new Error("the library of the charts did not load"));
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
    this.watcher = new ResizeObserver(() => this.resize());
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

  resize() {
    const width = this.element.clientWidth;
    if (width && this.drawing && width !== this.drawing.width) this.drawing.setSize({ width, height: HEIGHT });
    else if (!this.drawing) this.draw();
  }

  /** Say the figures at a time. @param {number} at the number of the time */
  tell(at) {
    const chart = this.chart;
    if (!chart || !(at in chart.times)) return;
    this.at = at;
    const figures = chart.series.map((one) => `${one.name} ${chart.write(one.values[at] ?? null)}`);
    const words = `${chart.writeTime(chart.times[at], at)}: ${figures.join(", ")}`;
    this.readout.textContent = words;
    this.element.setAttribute("aria-valuenow", String(at));
    this.element.setAttribute("aria-valuetext", words);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const last = (this.chart?.times.length ?? 0) - 1;
    const steps = /** @type {Record<string, number>} */ ({ ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -last, End: last });
    const step = steps[event.key];
    if (step === undefined || !this.chart) return;
    event.preventDefault();
    this.tell(Math.min(last, Math.max(0, this.at + step)));
    this.drawing?.setCursor({ left: this.drawing.valToPos(this.chart.times[this.at], "x"), top: 0 }, false);
  }

  /** @param {string} name a custom property; its pair for light and dark is resolved by the browser */
  color(name) {
    this.readout.style.color = `var(${name})`;
    const color = getComputedStyle(this.readout).color;
    this.readout.style.color = "";
    return color;
  }

  /** @param {any} uPlot @param {Chart} chart @param {number} width */
  options(uPlot, chart, width) {
    const [quiet, line] = [this.color("--quiet"), this.color("--line")];
    const font = `12px ${getComputedStyle(this.element).fontFamily}`;
    const axis = { stroke: quiet, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 } };
    const series = chart.series.map((one) => this.series(uPlot, chart.form, one.tone));
    return {
      width,
      height: HEIGHT,
      padding: [10, 10, 0, 0],
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { show: chart.form === "lines" } },
      scales: {
        x: chart.form === "bars" ? { range: () => withMargin(chart.times) } : {},
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [0, chart.top ?? (most > 0 ? most * 1.08 : 1)] },
      },
      axes: [
        { ...axis, size: 40, values: timesBelow },
        { ...axis, size: AXIS_WIDTH, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map((value) => `${value}${chart.suffix}`) },
      ],
      series: [{}, ...(chart.form === "lines" ? series : series.reverse())],
      hooks: { setCursor: [(/** @type {any} */ drawing) => drawing.cursor.left >= 0 && this.tell(drawing.cursor.idx)] },
    };
  }

  /** @param {any} uPlot @param {Chart["form"]} form @param {Tone} tone */
  series(uPlot, form, tone) {
    const { dash, pattern } = TONES[tone];
    const color = this.color(`--tone-${tone}`);
    if (form === "lines") return { stroke: color, width: 2, dash, points: { show: () => false }, fill: dash ? undefined : color.replace(/^rgb\((.*)\)$/, "rgba($1, .16)") };
    const fill = pattern ? patternOf(color, this.color("--card"), pattern) : color;
    return { stroke: color, width: 1, fill, points: { show: false }, paths: form === "bars" ? uPlot.paths.bars({ size: [0.72, 44] }) : undefined };
  }
}

/** Return what uPlot draws: sums are drawn from the highest on, each over the one before. @param {Chart} chart */
function columnsOf({ form, times, series, unit }) {
  const columns = series.map((one) => one.values.map((value) => (value === null ? null : value / unit)));
  if (form === "lines") return [times, ...columns];
  const sums = columns.map((_, last) =>
    times.map((__, at) => {
      const parts = columns.slice(0, last + 1).map((column) => column[at]);
      return parts.includes(null) ? null : parts.reduce((sum, part) => Number(sum) + Number(part), 0);
    }),
  );
  return [times, ...sums.reverse()];
}

/** Leave half a step on both sides, so that the outer bars are whole. @param {number[]} times */
function withMargin(times) {
  const [first, last] = [times[0] ?? 0, times[times.length - 1] ?? 0];
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
    const moment = new Date(at * 1000);
    const local = new Date(at * 1000 - moment.getTimezoneOffset() * 60_000).toISOString();
    const [day, time] = [local.slice(5, 10), local.slice(11, 16)];
    const isNew = day !== before;
    before = day;
    return step >= DAY_SECONDS ? day : isNew ? `${time}\n${day}` : time;
  });
}

/** @param {string} color @param {string} ground @param {(tile: Tile) => void} pattern */
function patternOf(color, ground, pattern) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = TILE;
  const tile = /** @type {Tile} */ (canvas.getContext("2d"));
  tile.fillStyle = ground;
  tile.fillRect(0, 0, TILE, TILE);
  tile.fillStyle = tile.strokeStyle = color;
  pattern(tile);
  return tile.createPattern(canvas, "repeat");
}

/** @param {Tile} tile */
function stripes(tile) {
  tile.lineWidth = 3;
  for (const from of [-TILE, 0, TILE]) {
    tile.moveTo(from - 1, TILE + 1);
    tile.lineTo(from + TILE + 1, -1);
  }
  tile.stroke();
}

/** @param {Tile} tile */
function dots(tile) {
  tile.fillRect(0, 0, 3, 3);
  tile.fillRect(4, 4, 3, 3);
}

/** @param {Tile} tile */
function grid(tile) {
  tile.fillRect(0, 0, TILE, 1);
  tile.fillRect(0, 0, 1, TILE);
}
