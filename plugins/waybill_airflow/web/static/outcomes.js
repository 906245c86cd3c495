// Reports of runs and requests, in plain words. A part of a report that this page does not know is
// listed by its name, never left out.

import { h } from "./dom.js";
import { count, many, percent, plain, size } from "./words.js";

const ENDED = ["success", "failed"];
const KNOWN = new Set([
  "pipeline", "version", "events", "would_pass", "would_filter", "would_fail", "examples", "parked", "good",
  "would_change", "newly_break", "changed_examples", "good_sample", "partition_id", "replay_id", "segments", "sent", "state", "resumed",
  "delivered", "passed", "parked_again", "superseded", "duplicate", "filtered", "in_flight", "waits_for", "quarantined", "outcome", "step",
]);

/** Tell whether a run's state is an end. */
export function hasEnded(state) {
  return ENDED.includes(state);
}

/** Return one sentence about a run that is on its way. */
export function progressWords(kind, run, waitedS) {
  if (run.state === "queued" || !run.started_at) {
    return waitedS > 25
      ? `It has waited for ${Math.round(waitedS)} s: see whether Airflow's scheduler runs and the DAG is not paused.`
      : "Waits for a place to run.";
  }
  const { events, sent } = run.progress ?? {};
  if (kind === "replay" && events) return `${count(sent)} of ${many(events, "event")} sent (${percent(sent, events)}).`;
  return kind === "dry_run" ? "Tries the pipeline on the events; nothing is written." : "Is being prepared.";
}

/** Return what a run that ended says, as elements. */
export function runWords(kind, run) {
  if (run.state === "failed") {
    const safe = kind === "replay" ? "Nothing is lost: what was not sent is still parked, and a replay begun again goes on where it stood." : "Nothing was changed.";
    return [h("p", {}, `The run failed. ${safe} The run's log in Airflow says why.`)];
  }
  if (!run.report) return [h("p", {}, "It is done. Its report is in the run's log in Airflow.")];
  return kind === "dry_run" ? dryRunWords(run.report) : replayWords(run.report);
}

function replayWords(report) {
  const outcome = typeof report.outcome === "object" && report.outcome !== null ? { ...report, ...report.outcome } : report;
  const sent = (outcome.sent ?? 0) + (outcome.resumed ?? 0);
  const parts = [h("p", {}, `${count(sent)} of ${many(outcome.events ?? sent, "event")} sent back into the pipeline${outcome.state === "cancelled" ? ", then it was cancelled" : ""}.`)];
  const again = sumOf(outcome.parked_again);
  const rows = [
    ["delivered", "good", outcome.delivered ?? outcome.passed], ["superseded by newer ones", "", outcome.superseded], ["filtered on purpose", "", outcome.filtered],
    ["duplicates", "", outcome.duplicate], ["parked again", "bad", again], ["in a damaged frame, set aside", "bad", outcome.quarantined], ["still on their way", "", outcome.in_flight],
  ].filter(([, , number]) => number !== undefined && number !== null && number !== 0);
  if (rows.length) parts.push(shares(rows, sent));
  if (again) parts.push(ways("Parked again", outcome.parked_again, {}));
  return [...parts, others(outcome)];
}

function dryRunWords(report) {
  const ownPart = report.parked && typeof report.parked === "object" ? report.parked : report;
  const goodPart = report.good ?? report.good_sample ?? null;
  const parts = [h("p", {}, `Tried with version ${report.version ?? "(unknown)"} of ${report.pipeline ?? "the pipeline"}. Nothing was written.`), sample("Parked events", ownPart, "would pass", "would fail again")];
  if (goodPart) parts.push(sample("Recent good events", goodPart, "still pass", "would newly break"));
  return [...parts, others(report)];
}

function sample(title, part, passes, fails) {
  const events = part.events ?? 0;
  const failing = part.would_fail ?? part.newly_break ?? {};
  const gone = part.would_filter ?? 0;
  const passing = part.would_pass ?? events - gone - sumOf(failing);
  const rows = [
    [passes, "good", passing], ["would be filtered", "", gone], ["with changed output", "", sumOf(part.would_change ?? part.changed)],
    [fails, "bad", Math.max(0, events - passing - gone)],
  ].filter(([, tone, number]) => number > 0 || tone);
  return h(
    "section", { class: "sample" },
    h("h4", {}, title, h("span", { class: "muted" }, ` ${many(events, "event")} tried`)),
    events ? shares(rows, events) : h("p", { class: "muted" }, "None could be read."),
    sumOf(failing) > 0 && ways("", failing, part.examples ?? {}),
  );
}

function sumOf(numbers) {
  if (typeof numbers === "number") return numbers;
  return Object.values(numbers ?? {}).reduce((sum, number) => sum + (Number(number) || 0), 0);
}

function shares(rows, whole) {
  const bars = rows.map(([words, tone, number]) =>
    h("li", { class: tone },
      h("span", { class: "share-words" }, h("strong", {}, count(number)), ` ${words}`), h("span", { class: "share-part" }, percent(number, whole)),
      h("span", { class: "share", vars: { "--share": whole ? Math.min(1, number / whole) : 0 } })),
  );
  return h("ul", { class: "shares" }, bars);
}

function ways(title, numbers, examples) {
  if (typeof numbers === "number") return null;
  const rows = Object.entries(numbers).map(([way, number]) => h("li", {}, h("strong", {}, count(number)), " ", h("code", {}, way), examples[way] && h("p", { class: "message" }, examples[way])));
  return [title && h("h4", {}, title), h("ul", { class: "ways" }, rows)];
}

function others(report) {
  const rows = Object.entries(report).filter(([name, value]) => !KNOWN.has(name) && value !== null && value !== "");
  if (!rows.length) return null;
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, plain(name)), h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))]));
}

/** Return one sentence about a discard, or its undoing. */
export function discardWords(report, undone) {
  const done = undone ? "back among the parked events" : "discarded";
  const left = report.left_events
    ? ` ${many(report.left_events, "event")} stayed as they were: the window cuts through their segment, or a clean-up has claimed their file.`
    : "";
  if (!report.events) return `No event was ${undone ? "brought back" : "discarded"}.${left}`;
  return `${many(report.events, "event")} (${size(report.bytes)}) ${report.events === 1 ? "is" : "are"} ${done}.${left}`;
}
