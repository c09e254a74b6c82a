// Names for the checks of the page's JavaScript; this file is not served.

type Context = import("./app.js").Context;
type Child = import("./dom.js").Child;
type Column<Row> = import("./table.js").Column<Row>;
/** The words of the address. */
type Words = Record<string, string>;
type Filter = { label: string; name: string; options?: readonly string[]; hint?: string; usual?: string };
/** HistoryWindow of history.proto, without what is not asked for. */
type PastWindow = { since: number; until: number; user?: string; project?: string; class?: string; pool?: boolean };
/** A tone is a colour with a pattern or a dash, so that no meaning is carried by colour alone. */
type Tone = "used" | "big" | "idle" | "unseen" | "held" | "peak" | "past";
/** A missing value is null: the chart has a gap there. */
type Series = { name: string; tone: Tone; values: (number | null)[] };
/** The values of bars add up. Times are seconds since the epoch; the axis counts in units of the values. */
type Chart = {
  title: string;
  form: "lines" | "bars";
  times: number[];
  series: Series[];
  unit: number;
  suffix?: string;
  write: (value: any) => string;
  writeTime: (at: number, index: number) => string;
};
