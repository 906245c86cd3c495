// The page "Sources": how the last run of each source is, live; a run is stopped at its next page.

import { ask, change as send } from "./client.js";
import { rate, span } from "./cluster_card.js";
import { openForm, textField } from "./dialogs.js";
import { h } from "./dom.js";
import { cell, linePage, tableRow } from "./line_page.js";
import { notice } from "./notices.js";
import { refusal } from "./permissions.js";
import { ago, count, size, time } from "./words.js";

const AGAIN_MS = 5_000;
const STATES = [["", "all"], ["running", "running"], ["failed", "failed"]];
const NONE = ["never", "pushed"];
const GOING = ["running", "stopping", "waiting"];
const STOPPABLE = ["running", "waiting"];
const WAITS = { share: "waits: its team is over its share", kafka: "waits: the log is full" };
const STOPPED = ["stopping", "stopped"]; // a run may end otherwise before it sees that it is to stop
const LOOKS = { running: "good", success: "good", stopping: "warn", stopped: "warn", waiting: "warn", silent: "bad-state", failed: "bad-state" };
const MEANINGS = { pushed: "It sends by itself, to the collector: nothing runs.", never: "No run has begun yet.", stopping: "It ends at its next page.", silent: "It runs, and was not heard of for a minute: its process is dead, frozen, or has no tracker. The next run goes on.", waiting: "It gave its slot back at a page, and goes on from there.", stopped: "Somebody had it end before the source did." };
const HEADS = [["Source"], ["Last run"], ["Rows", "number", "That the run read"], ["Rows/s", "number", "Lately; of a run that ended, over all of it"], ["Position"], ["Behind", "number", "How far the run was behind the source's end, where the source can say"], ["Last success"], ["Next run", "", "By its schedule, were its DAG not paused"], [""]];

let me = null;

function choices(view, change) {
  return h("fieldset", { class: "spans" }, h("legend", { class: "sr-only" }, "Which runs"), STATES.map(([state, text]) =>
    h("label", {}, h("input", { type: "radio", name: "state", value: state, checked: state === view.state, onchange: () => change({ state }) }), h("span", {}, text))));
}

function row(one) {
  const at = (moment, none) => (moment ? h("time", { datetime: moment, title: `${time(moment)} UTC` }, ago(moment)) : h("span", { class: "muted" }, none));
  return tableRow(one.pipeline_id,
    [h("a", { href: `balance#${new URLSearchParams({ pipeline: one.pipeline_id })}`, title: `The balance of ${one.pipeline}` }, one.pipeline), h("span", { class: "sub" }, `${one.team}, ${one.connector || "nothing deployed"}`)],
    cell("Last run", "", h("span", { class: `state ${LOOKS[one.state] ?? ""}`, title: MEANINGS[one.state] ?? "" }, one.state), h("span", { class: "sub" }, since(one)), one.waits_for && h("span", { class: "sub" }, WAITS[one.waits_for]), one.node && h("span", { class: "sub" }, `on ${one.node}`), one.stop_asked_by && h("span", { class: "sub" }, `${STOPPED.includes(one.state) ? "stopped" : "stop asked"} by ${one.stop_asked_by}`)),
    cell("Rows", "number", NONE.includes(one.state) ? h("span", { class: "muted" }, "–") : count(one.read), one.parked > 0 && h("span", { class: "sub" }, `${count(one.parked)} parked`), GOING.includes(one.state) && h("span", { class: "sub" }, `${count(one.settled)} settled`), share(one)),
    cell("Rows/s", "number", NONE.includes(one.state) ? h("span", { class: "muted" }, "–") : rate(one.rate_per_s)),
    cell("Position", "place", one.position || h("span", { class: "muted" }, "–")),
    cell("Behind", "number", one.behind === null ? h("span", { class: "muted", title: "The source cannot say." }, "–") : amount(one.behind, one.unit)),
    cell("Last success", "error", at(one.succeeded_at, "never"), one.failed_at && h("span", { class: `sub ${one.state === "failed" ? "bad" : ""}` }, "failed ", at(one.failed_at), one.error && `: ${one.error}`)),
    cell("Next run", "", one.next_run_at ? h("time", { datetime: one.next_run_at, title: `${time(one.next_run_at)} UTC` }, time(one.next_run_at, { seconds: false })) : h("span", { class: "muted" }, one.state === "pushed" ? "–" : "by hand")),
    cell("", "act", STOPPABLE.includes(one.state) && stopButton(one)));
}

function since(one) {
  if (NONE.includes(one.state)) return "";
  if (one.ended_at) return `${ago(one.ended_at)}, took ${span((Date.parse(one.ended_at) - Date.parse(one.started_at)) / 1000)}`;
  if (one.state === "waiting") return `for ${span((Date.now() - Date.parse(one.told_at)) / 1000)}`;
  return one.state === "silent" ? `heard of ${ago(one.told_at)}` : `for ${span((Date.parse(one.told_at) - Date.parse(one.started_at)) / 1000)}`;
}

/** How much of a source that knows its rows is read, by all runs. */
function share(one) {
  if (!one.total || !GOING.includes(one.state)) return null;
  return h("progress", { class: "bar-of-run", max: one.total, value: Math.min(one.rows_read, one.total), "aria-label": `${count(one.rows_read)} of ${count(one.total)} rows are read` });
}

function amount(number, unit) {
  if (unit === "bytes") return size(number);
  return unit === "seconds" ? span(number) : `${count(Math.round(number))} ${unit}`;
}

function stopButton(one) {
  const why = refusal(me, "replay", one.team);
  return h("button", { type: "button", class: "button", disabled: Boolean(why), title: why || "End the run at its next page", onclick: () => stop(one) }, "Stop");
}

async function stop(one) {
  const done = await openForm({
    title: `Stop the run of ${one.pipeline}`,
    intro: "It ends at its next page. What it has read is delivered, nothing is lost, and the next run goes on from there.",
    fields: [textField("why", "Reason", { note: "For the audit log." })],
    action: "Stop the run", danger: true,
    send: (values) => send("POST", `/pipelines/${encodeURIComponent(one.pipeline_id)}/stop-source`, values),
  });
  if (done) notice(`The run of ${one.pipeline} ends at its next page.`);
  await load();
}

const load = linePage({
  title: "Sources", noun: "source", look: "pipelines sources", heads: HEADS,
  intro: "How far each source is read: its run, what is left, when it succeeded last.",
  path: "/sources", againMs: AGAIN_MS, lines: (found) => found.sources, key: "pipeline_id",
  filters: { state: STATES.map(([state]) => state) }, choices, row,
  tiles: (found) => [[found.total, found.total === 1 ? "source" : "sources"], [found.running, "running"], [found.failed, "failed", found.failed ? "bad" : ""]],
  none: (view) => (view.words || view.state ? ["No source matches.", "Change the words, or show all."] : ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`."]),
  prepare: async () => {
    me = await ask("/me");
  },
});
