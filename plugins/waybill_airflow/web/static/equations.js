// A cell of the heat map in words: what went into each stage, and what became of it.

import { count } from "./words.js";

export const STAGES = ["ingestion", "transformation", "mapping", "destination"];
const COUNTS = ["in_first", "in_replayed", "passed", "out", "parked", "filtered", "superseded", "duplicate"];
const VERDICTS = { balanced: "in balance", moving: "on the way", breach: "breach", nothing: "nothing came in" };

/** "breach" → "breach"; "moving" → "on the way". */
export function verdictWords(verdict) {
  return VERDICTS[verdict] ?? verdict;
}

/** Return a stage's counts by name; null where the stage was not reached. */
function countsOf(cell, stage) {
  const numbers = cell.stages[stage];
  return numbers ? Object.fromEntries(COUNTS.map((name, index) => [name, numbers[index]])) : null;
}

function parts(stage, counts) {
  return [
    [counts.passed, stage === "destination" ? "delivered" : "passed on"],
    [counts.parked, "parked (ever)"], [counts.filtered, "filtered"], [counts.superseded, "superseded"], [counts.duplicate, "duplicates"],
  ].filter(([number], index) => number || !index);
}

/** Return {stage, left, right, off}: "1,204 in", "1,200 passed on + 4 parked", and what is left over. */
export function equations(cell) {
  const found = [];
  let before = null;
  for (const stage of STAGES) {
    const counts = countsOf(cell, stage);
    if (counts) found.push(equation(cell, stage, counts, before));
    else if (before?.out) found.push({ stage, left: "0 in", right: "", off: away(cell, before.out) });
    before = counts;
  }
  return found;
}

function equation(cell, stage, counts, before) {
  const all = parts(stage, counts);
  const taken = counts.in_first + counts.in_replayed;
  const gone = all.reduce((sum, [number]) => sum + number, 0);
  const made = counts.out - counts.passed;
  const notes = [
    taken !== gone && `${taken > gone ? "+" : "−"} ${count(Math.abs(taken - gone))} ${taken > gone ? "missing" : "too many"}`,
    before && before.out !== counts.in_first && away(cell, before.out - counts.in_first),
    made > 0 && stage !== "destination" && `${count(made)} more made of them`,
  ];
  const replayed = counts.in_replayed ? ` (${count(counts.in_replayed)} replayed)` : "";
  const right = all.map(([number, words]) => `${count(number)} ${words}`).join(" + ");
  return { stage, left: `${count(taken)} in${replayed}`, right, off: notes.filter(Boolean).join("; ") };
}

function away(cell, number) {
  const missing = cell.verdict === "breach" ? "did not come here" : "not here yet";
  return number > 0 ? `${count(number)} ${missing}` : `${count(-number)} more than were passed on`;
}

/** Return the number of events that a cell stands for. */
export function eventsOf(cell) {
  const first = STAGES.map((stage) => countsOf(cell, stage)).find(Boolean);
  return first ? first.in_first + first.in_replayed : 0;
}

/** Return all of a cell in one text, for screen readers. */
export function cellWords(when, cell) {
  if (!cell) return `${when}: nothing came in`;
  const gap = cell.gap ? `, ${count(cell.gap)} missing or too many` : "";
  const lines = equations(cell).map((one) => `${one.stage}: ${one.left}${one.right ? ` = ${one.right}` : ""}${one.off ? ` (${one.off})` : ""}`);
  return [`${when}: ${verdictWords(cell.verdict)}${gap}`, ...cell.why, ...lines].join(". ");
}
