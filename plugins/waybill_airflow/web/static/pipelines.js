// The page "Pipelines": a line each, found by words, in pages by name; rates come behind the lines.

import { spark } from "./chart.js";
import { ask } from "./client.js";
import { rate, span } from "./cluster_card.js";
import { fill, h } from "./dom.js";
import { cell, linePage } from "./line_page.js";
import { stageClass } from "./list.js";
import { named } from "./names.js";
import { notice } from "./notices.js";
import { ago, count, many, time } from "./words.js";

const AGAIN_MS = 30_000;
const STALE_MS = 5 * 60_000;
const LATE_S = 60;
const RATE_MINUTES = 5;
const HEADS = [["Pipeline"], ["In/s", "number", "Taken in, over five minutes"], ["Out/s", "number", "Delivered, over five minutes: what came in before, and replays, as well"], ["Last hour"], ["Lag", "number", "For how long the oldest unread event of its topic waits; pipelines of one team into one destination share a topic."], ["Parked", "number"], ["Last error"]];

let titles = null; // of error types
let toldRates = false;

function choices(view, change) {
  return [
    h("label", { class: "tick" }, h("input", { type: "checkbox", name: "attention", checked: view.attention === "true", onchange: (event) => change({ attention: event.target.checked ? "true" : "" }) }), "Only held, or with events parked"),
    h("ul", { class: "keys" }, h("li", { class: "lag" }, "taken in"), h("li", { class: "busy" }, "delivered")),
  ];
}

/** Rates may take longer than the lines, or not come at all: the lines stay. */
async function loadRates(table, rows, signal, isCurrent) {
  try {
    const found = await ask("/pipeline-rates", { query: { pipeline: rows.map((one) => one.id) }, signal });
    if (!isCurrent()) return;
    for (const line of table.querySelectorAll("tr[data-id]")) drawRates(line, found.pipelines[line.dataset.id], found.since);
    toldRates = false;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!toldRates) notice(`Rates are not known now: ${error.message}`, "info");
    toldRates = true;
  }
}

function drawRates(line, rates, since) {
  if (!rates) return;
  const mean = (numbers) => numbers.slice(-RATE_MINUTES).reduce((sum, one) => sum + one, 0) / (RATE_MINUTES * 60);
  const total = (numbers) => numbers.reduce((sum, one) => sum + one, 0);
  const words = `${many(total(rates.came_in), "event")} taken in within an hour from ${time(since, { seconds: false })} UTC, ${count(total(rates.delivered))} delivered`;
  fill(line.querySelector("[data-rate=in]"), rate(mean(rates.came_in)));
  fill(line.querySelector("[data-rate=out]"), rate(mean(rates.delivered)));
  fill(line.querySelector(".spark"), spark([{ look: "lag", values: rates.came_in }, { look: "busy", values: rates.delivered }], words));
}

/** Return a pipeline's line; rates are those of the line before until newer ones come. */
function row(one, old) {
  const kept = (name) => [...(old?.querySelector(name)?.childNodes ?? [])];
  const hash = (given) => `#${new URLSearchParams(given)}`;
  const stale = one.lag_at !== null && Date.now() - Date.parse(one.lag_at) > STALE_MS;
  return h("tr", { "data-id": one.id },
    h("th", { scope: "row" }, h("a", { href: `balance${hash({ pipeline: one.id })}`, title: `The balance of ${one.name}` }, one.name), held(one),
      h("span", { class: "sub" }, one.team, one.destination === null ? ", nothing deployed" : ` → ${one.destination}`)),
    h("td", { class: "number", "data-label": "In/s", "data-rate": "in" }, kept("[data-rate=in]")),
    h("td", { class: "number", "data-label": "Out/s", "data-rate": "out" }, kept("[data-rate=out]")),
    cell("Last hour", "spark", kept(".spark")),
    cell("Lag", `number ${one.lag_s > LATE_S ? "bad" : ""}`, one.lag_s === null ? h("span", { class: "muted", title: "The coordinator has not looked at its topic." }, "–") : span(one.lag_s), stale && h("span", { class: "sub" }, `as of ${ago(one.lag_at)}`)),
    cell("Parked", "number", one.parked ? h("a", { href: `parked${hash({ pipeline: one.name })}` }, count(one.parked)) : h("span", { class: "muted" }, "0"), one.replaying > 0 && h("span", { class: "sub" }, `${count(one.replaying)} replaying`)),
    cell("Last error", "error", lastError(one.last_error, hash)));
}

function held(one) {
  if (one.held_at === null) return null;
  const why = one.hold_kind === "storm" ? "Nearly all of its events would park for one cause, so all wait as they came." : "Held by hand: its events wait as they came.";
  return h("span", { class: "state held", title: `${why} Since ${time(one.held_at)} UTC.` }, `held ${ago(one.held_at)}`);
}

function lastError(error, hash) {
  if (error === null) return h("span", { class: "muted" }, "none");
  const title = titles.get(error.error_type) ?? error.error_type;
  return [h("a", { href: `parked${hash({ id: error.partition_id })}` }, title), h("span", { class: "sub" }, h("span", { class: `stage ${stageClass(error.stage)}` }, error.stage), " ", named(error.event_name), ", ", h("time", { datetime: error.at, title: `${time(error.at)} UTC` }, ago(error.at)))];
}

linePage({
  title: "Pipelines", noun: "pipeline", look: "pipelines", heads: HEADS,
  intro: "How much comes in and is delivered, how long it waits, and what could not go on.",
  path: "/pipelines", againMs: AGAIN_MS, lines: (found) => found.pipelines, key: "id",
  filters: { attention: ["true"] }, choices, row, drawn: loadRates,
  tiles: (found) => [[found.total, found.total === 1 ? "pipeline" : "pipelines"], [found.held, "held", found.held ? "warn" : ""]],
  none: ({ words, attention }) => {
    if (!words && !attention) return ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`."];
    return ["No pipeline matches.", words ? "Change the words, or show all." : "Nothing is held, and nothing is parked."];
  },
  prepare: async () => {
    titles = new Map((await ask("/catalogue")).error_types.map((one) => [one.code, one.title]));
  },
});
