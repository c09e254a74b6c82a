// Show what a lease used of what it held, over its life.
import { h } from "./dom.js";
import { memoryPair, percent } from "./format.js";

/** @param {LeaseReport} report */
export function useOverLife({ lease }) {
  const account = lease?.account;
  return h("p", null, `use ${percent(account?.use_of_held_ratio) || "not seen"}, memory ${percent(account?.memory_of_held_ratio) || "not seen"}, peak ${memoryPair(lease?.peak_bytes, lease?.held_bytes ?? 0)}`);
}
