// Reports of runs and requests, in plain words. A part of a report that this page does not know is
// listed by its name, never left out.

import { h, icon } from "./dom.js";
import { count, many, percent, plain, size } from "./words.js";

const ENDED = ["success", "failed"];
const STEPS = ["1%", "10%", "100%"];
const KNOWN = new Set([
  "pipeline", "version", "events", "tried", "would_pass", "would_filter", "would_fail", "pass_rate", "low", "high", "expected_filter", "expected_fail",
  "by_fingerprint", "examples", "damaged", "unreadable", "good", "remedies", "partition_id", "replay_id", "segments", "sent", "state", "resumed", "seconds", "refused", "problem",
  "delivered", "passed", "parked_again", "superseded", "duplicate", "filtered", "in_flight", "waits_for", "quarantined", "outcome", "step", "steps",
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
  if (run.state === "failed" && !(kind === "replay" && run.report)) {
    const safe = kind === "replay" ? "Nothing is lost: what was not sent is still parked, and a replay begun again goes on where it stood." : "Nothing was changed.";
    if (!run.reason) return [h("p", {}, `The run failed. ${safe} The run's log in Airflow says why.`)];
    return [h("p", { class: "stopped" }, icon("alert"), h("span", {}, sentence(run.reason))), fates(run), h("p", {}, safe)].filter(Boolean);
  }
  if (!run.report) return [h("p", {}, "It is done. Its report is in the run's log in Airflow.")];
  return kind === "dry_run" ? dryRunWords(run.report) : replayWords(run.report);
}

/** What became of a run's events so far, where it left no report. */
function fates({ progress, became }) {
  const rows = [["delivered", "good"], ["superseded", ""], ["duplicate", ""], ["filtered", ""], ["held", ""], ["parked", "bad"]]
    .map(([name, tone]) => [name === "parked" ? "parked again" : name, tone, became?.[name]])
    .filter(([, , number]) => number);
  const sent = progress && h("p", {}, `${count(progress.sent)} of ${many(progress.events, "event")} sent.`);
  return sent && [sent, rows.length ? shares(rows, progress.events) : null];
}

function replayWords(report) {
  const outcome = typeof report.outcome === "object" && report.outcome !== null ? { ...report, ...report.outcome } : report;
  const sent = (outcome.sent ?? 0) + (outcome.resumed ?? 0);
  const parts = outcome.steps?.length ? canary(outcome, sent) : [h("p", {}, `${count(sent)} of ${many(outcome.events ?? sent, "event")} sent back into the pipeline${outcome.state === "cancelled" ? ", then it was cancelled" : ""}.`)];
  const again = sumOf(outcome.parked_again);
  const rows = [
    ["delivered", "good", outcome.delivered ?? outcome.passed], ["superseded by newer ones", "", outcome.superseded], ["filtered on purpose", "", outcome.filtered],
    ["duplicates", "", outcome.duplicate], ["parked again", "bad", again], ["refused by Kafka, parked again", "bad", outcome.refused], ["damaged, set aside", "bad", outcome.quarantined], ["still on their way", "", outcome.in_flight],
  ].filter(([, , number]) => number !== undefined && number !== null && number !== 0);
  if (rows.length) parts.push(shares(rows, outcome.events ?? sent));
  if (outcome.problem) parts.push(h("p", { class: "stopped" }, icon("alert"), h("span", {}, sentence(outcome.problem))));
  if (again) parts.push(ways("Parked again", outcome.parked_again, {}));
  return [...parts, others(outcome)];
}

/** What a canary did, with a line for each step: those that passed, the one that stopped it, those never begun. */
function canary({ state, steps }, sent) {
  const stopped = state === "stopped";
  const last = STEPS.indexOf(steps.at(-1).step);
  const begun = steps.map((one, index) => canaryStep(one, stopped && index === steps.length - 1, one.step === STEPS.at(-1)));
  const never = last < 0 ? [] : STEPS.slice(last + 1).map((name) => h("li", { class: "never" }, mark("stop"), h("strong", {}, percentName(name)), h("span", {}, "not begun"), h("span", {}, "")));
  const words = stopped ? `${many(sent, "event")} went back into the pipeline, the rest is parked as before.` : `The canary went through: ${many(sent, "event")} went back into the pipeline.`;
  return [h("p", {}, words), h("ol", { class: "canary", "aria-label": "Steps of the canary" }, begun, never)];
}

function canaryStep(one, stopped, whole) {
  const again = Object.entries(one.ways ?? {}).map(([way, number]) => h("span", { class: "sub" }, `${count(number)} `, h("code", {}, way)));
  const fate = whole ? "not waited for" : one.parked_again ? `${count(one.parked_again)} parked again (${percent(one.parked_again, one.events)})` : "none parked again";
  return h("li", { class: stopped ? "bad" : "good" }, mark(stopped ? "close" : "check"), h("strong", {}, percentName(one.step)), h("span", {}, `${many(one.events, "event")} sent`), h("span", {}, fate, again));
}

function mark(name) {
  return h("span", { class: "mark" }, icon(name));
}

/** "10%" as the page writes percentages. */
function percentName(step) {
  return step.replace("%", " %");
}

/** Return words as a sentence: a capital in front, a full stop behind. */
export function sentence(words) {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
}

function dryRunWords(report) {
  const words = `Tried with version ${report.version ?? "(unknown)"} of ${report.pipeline ?? "the pipeline"}. Nothing was written.`;
  const samples = h("div", { class: "samples" }, ownSample(report), goodSample(report.good));
  return [h("p", {}, words), prediction(report), samples, remedies(report), others(report)].filter(Boolean);
}

/** What the events that were tried mean for all of them. */
function prediction(report) {
  if (typeof report.pass_rate !== "number") return null;
  const [rate, low, high] = [report.pass_rate, report.low, report.high].map((share) => percent(share * 1000, 1000));
  const range = low === high ? "" : ` (from ${low} to ${high} in 95 of 100 samples)`;
  return h("p", { class: "prediction" }, "Predicted to pass: ", h("strong", {}, rate), ` of ${many(report.events, "event")}${range}.`);
}

/** Each way to have the events delivered, the mildest first, with its commands. */
function remedies(report) {
  const lines = (report.remedies ?? []).map((one) => h("li", {}, sentence(one.advice), one.commands.map((command) => h("p", {}, h("code", {}, command)))));
  return lines.length > 0 && h("ul", { class: "ways" }, lines);
}

function ownSample(report) {
  const tried = report.tried ?? report.events ?? 0;
  const passing = report.would_pass ?? 0;
  const gone = report.would_filter ?? 0;
  const rows = [
    ["would pass", "good", passing], gone > 0 && ["would be filtered", "", gone],
    ["would fail again", "bad", Math.max(0, tried - passing - gone)], report.damaged > 0 && ["could not be read", "bad", report.damaged],
  ];
  const title = report.tried !== undefined && report.tried < report.events ? "A sample of the parked events" : "The parked events";
  return sample(title, tried, rows.filter(Boolean), [failing(report), unread(report), byFingerprint(report.by_fingerprint)]);
}

function failing(report) {
  return sumOf(report.would_fail) > 0 && ways("", report.would_fail, report.examples ?? {});
}

/** Which files could not be read, and what was set apart before. */
function unread({ unreadable, quarantined }) {
  const lines = (unreadable ?? []).map((one) => h("li", {}, `${many(one.events, "event")} of `, h("code", {}, one.object_key), `: ${one.reason}`));
  if (quarantined) lines.push(h("li", {}, `${many(quarantined, "event")} in quarantine: their files are damaged or gone`));
  return lines.length > 0 && h("ul", { class: "ways" }, lines);
}

function byFingerprint(groups) {
  const rows = Object.values(groups ?? {});
  if (rows.length < 2) return null;
  const lines = rows.map((one) => h("li", {}, h("strong", {}, percent(one.would_pass, one.tried)), ` of ${many(one.events, "event")}: `, h("span", { class: "message" }, one.message)));
  return h("details", {}, h("summary", {}, `Would pass, by ${many(rows.length, "kind")} of error`), h("ul", { class: "ways" }, lines));
}

function goodSample(good) {
  if (!good?.tried) return null; // the deployed version is the one that they passed with
  const rows = [
    ["same output", "good", good.same], good.changed > 0 && ["with changed output", "", good.changed], ["would newly break", "bad", good.newly_broken],
  ];
  return sample("A sample of recent good events", good.tried, rows.filter(Boolean), [sumOf(good.ways) > 0 && ways("", good.ways, {}), goodExamples(good.examples)]);
}

function goodExamples(examples) {
  if (!examples?.length) return null;
  const lines = examples.map((one) => h("li", {}, h("code", {}, one.event_id), one.way && h("p", { class: "message" }, `${one.way}: ${one.message ?? ""}`), Object.entries(one.columns ?? {}).map(([name, [before, after]]) => h("p", { class: "message" }, `${name}: ${JSON.stringify(before)} → ${JSON.stringify(after)}`))));
  return h("details", {}, h("summary", {}, many(examples.length, "example")), h("ul", { class: "ways" }, lines));
}

function sample(title, tried, rows, more) {
  const body = tried ? shares(rows, tried) : h("p", { class: "muted" }, "None could be read.");
  return h("section", { class: "sample" }, h("h4", {}, title, h("span", { class: "muted" }, ` ${many(tried, "event")} tried`)), body, more);
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
    ? ` ${many(report.left_events, "event")} stayed as they were: the window cuts through the part of a file that holds them, or a clean-up has claimed or deleted their file.`
    : "";
  if (!report.events) return `No event was ${undone ? "brought back" : "discarded"}.${left}`;
  return `${many(report.events, "event")} (${size(report.bytes)}) ${report.events === 1 ? "is" : "are"} ${done}.${left}`;
}
