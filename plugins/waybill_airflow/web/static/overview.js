// The page "Overview": a line a pipeline, found by words, in pages by name; each number leads to what is behind it.

import { leaveOldView, openInAirflow } from "./address.js";
import { drawing } from "./chart.js";
import { ask } from "./client.js";
import { rate, span } from "./cluster_card.js";
import { h, icon } from "./dom.js";
import { cell, linePage, tableRow } from "./line_page.js";
import { notice } from "./notices.js";
import { ago, count, time } from "./words.js";

const AGAIN_MS = 30_000;
const STALE_MS = 5 * 60_000;
const LATE_S = 60;
const HELD_ERROR = "pipeline_held";
const HEADS = [["Pipeline"], ["State"], ["In/s", "number", "Taken in, over five minutes"], ["Out/s", "number", "Delivered, over five minutes: what came in before, and replays, as well. Not counted: copies and older versions of rows that the destination has, as of a source that is read again. They are not lost: the balance shows them"], ["Last hour"], ["Lag", "number", "For how long the oldest unread event of its topic waits; pipelines of one team into one destination share a topic."], ["Parked", "number", "Those among them that are held"], ["Held", "number", "Parked as they came, while the pipeline is held"], ["Breaches", "number", "Open: what does not add up"], ["Last run", "", "Of its source, in Airflow"]];
const LOOKS = { running: "good", listening: "good", stopping: "warn", waiting: "warn", held: "warn", away: "warn", stopped: "bad-state", failed: "bad-state", silent: "bad-state" };
const NAMES = { away: "destination away", stopped: "topic stopped" };
const MEANINGS = {
  "not deployed": "no version is deployed", stopped: "nothing of its topic is read", failed: "its source was not read", silent: "its run is not heard of",
  away: "loads wait", waiting: "its run gave its slot back", listening: "its source sends by itself",
};
const NO_RUN = { never: "none yet", pushed: "–" };
const WORSE = [["silent", "with a silent run", "bad"], ["stopped", "with a stopped topic", "bad"], ["away", "with a destination away", "warn"]]; // tiles of what is seldom

let titles = null; // of error types

function choices(view, change) {
  return [
    h("label", { class: "tick" }, h("input", { type: "checkbox", name: "attention", checked: view.attention === "true", onchange: (event) => change({ attention: event.target.checked ? "true" : "" }) }), "Only what needs a look: held, parked, breaches, failed or silent runs, stopped topics, destinations away"),
    h("ul", { class: "keys" }, h("li", { class: "lag" }, "taken in"), h("li", { class: "busy" }, "delivered")),
  ];
}

function row(one) {
  const balance = to("balance", { span: "1h", pipeline: one.id });
  return tableRow(one.id,
    [h("a", { href: to("balance", { pipeline: one.id }), title: `The balance of ${one.name}` }, one.name), h("span", { class: "sub" }, one.team, one.destination !== null && ` → ${one.destination}`)],
    cell("State", "standing", state(one)),
    cell("In/s", "number", leading(balance, rate(one.came_in_per_s), "taken in a second: minute by minute")),
    cell("Out/s", "number", leading(balance, rate(one.delivered_per_s), "delivered a second: minute by minute")),
    cell("Last hour", "spark", drawing(one.sparkline)),
    cell("Lag", "number", lag(one)),
    cell("Parked", "number parked-now", number(to("parked", { pipeline: one.name }), one.parked, "parked"), one.replaying > 0 && h("span", { class: "sub" }, `${count(one.replaying)} replaying`), lastError(one)),
    cell("Held", "number", number(to("parked", { pipeline: one.name, error_type: HELD_ERROR }), one.held, "held")),
    cell("Breaches", `number ${one.breaches ? "bad" : ""}`, number(to("balance", { pipeline: one.id }), one.breaches, one.breaches === 1 ? "open breach" : "open breaches")),
    cell("Last run", "run", lastRun(one)));
}

function to(page, view) {
  return `${page}#${new URLSearchParams(view)}`;
}

/** A link that shows a number, and says to a screen reader what it counts. */
function leading(href, shown, words) {
  return h("a", { href }, shown, h("span", { class: "sr-only" }, ` ${words}`));
}

function number(href, found, words) {
  return found ? leading(href, count(found), words) : h("span", { class: "muted" }, "0");
}

function state(one) {
  const why = one.state === "held" ? (one.hold_kind === "storm" ? "nearly all would park" : "by hand") : MEANINGS[one.state];
  const since = one.state_since && h("time", { datetime: one.state_since, title: `${time(one.state_since)} UTC` }, ago(one.state_since));
  return [h("span", { class: `state ${LOOKS[one.state] ?? ""}` }, NAMES[one.state] ?? one.state), (why || since) && h("span", { class: "sub" }, why, why && since && ", ", since)];
}

function lag(one) {
  if (one.lag_s === null) return [h("span", { class: "muted", "aria-hidden": "true" }, "–"), h("span", { class: "sr-only" }, "not known")];
  const isStale = Date.now() - Date.parse(one.lag_at) > STALE_MS;
  return [h("a", { href: to("clusters", { team: one.team }), class: one.lag_s > LATE_S ? "bad" : null }, span(one.lag_s), h("span", { class: "sr-only" }, ` lag: the work of team ${one.team}`)), isStale && h("span", { class: "sub" }, `as of ${ago(one.lag_at)}`)];
}

function lastError({ parked, last_error: error }) {
  if (error === null) return null;
  return h("span", { class: "sub" }, parked ? "last: " : "none now; the last: ", h("a", { href: to("parked", { id: error.partition_id }), title: error.error_type }, titles.get(error.error_type) ?? error.error_type), ", ", h("time", { datetime: error.at, title: `${time(error.at)} UTC` }, ago(error.at)));
}

function lastRun(one) {
  if (one.run_state in NO_RUN) return h("span", { class: "muted" }, NO_RUN[one.run_state]);
  return [
    h("button", { type: "button", class: `link ${one.run_state === "failed" && !one.run_outdated ? "bad" : ""}`, onclick: () => openRun(one) }, one.run_state, icon("open"), h("span", { class: "sr-only" }, ` the last run of ${one.name} in Airflow`)),
    h("span", { class: "sub" }, h("time", { datetime: one.run_at, title: `${time(one.run_at)} UTC` }, ago(one.run_at)), one.run_outdated && ", before its source or destination changed", " · ", h("a", { href: to("sources", { words: one.name }) }, "source")),
  ];
}

/** Show the run in Airflow; where Airflow has it no more, the DAG's runs. */
async function openRun(one) {
  try {
    const found = await ask(`/pipelines/${encodeURIComponent(one.id)}/last-run`);
    const runs = `dags/${encodeURIComponent(found.dag_id)}/runs`;
    openInAirflow(found.run_id === null ? runs : `${runs}/${encodeURIComponent(found.run_id)}`);
  } catch (error) {
    notice(error.message, "error");
  }
}

const isMoved = leaveOldView("waybill-pipelines", "waybill-overview/waybill/overview");
if (!isMoved) linePage({
  title: "Overview", noun: "pipeline", look: "pipelines overview", heads: HEADS,
  intro: "How each pipeline is: what comes in and is delivered, how long it waits, what could not go on, and what does not add up.",
  path: "/pipelines", againMs: AGAIN_MS, lines: (found) => found.pipelines, key: "id",
  filters: { attention: ["true"] }, choices, row,
  tiles: (found) => [[found.total, found.total === 1 ? "pipeline" : "pipelines"], [found.held, "held", found.held ? "warn" : ""], [found.breaches, found.breaches === 1 ? "open breach" : "open breaches", found.breaches ? "bad" : ""], [found.failed, "with a failed run", found.failed ? "bad" : ""], ...WORSE.filter(([name]) => found[name]).map(([name, words, look]) => [found[name], words, look])],
  none: ({ words, attention }) => {
    if (!words && !attention) return ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`."];
    return ["No pipeline matches.", words ? "Change the words, or show all." : "Nothing is held, parked or stopped, no run failed or fell silent, no destination is away, and all adds up."];
  },
  prepare: async () => {
    titles = new Map((await ask("/catalogue")).error_types.map((one) => [one.code, one.title]));
  },
});
