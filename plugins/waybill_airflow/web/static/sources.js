// The page "Sources": how the last run of each source is, live; a run is stopped at its next page.

import { tellOuter } from "./address.js";
import { ask, change as send } from "./client.js";
import { rate, span } from "./cluster_card.js";
import { openForm, textField } from "./dialogs.js";
import { fill, h, icon } from "./dom.js";
import { waiting } from "./list.js";
import { live } from "./live_page.js";
import { notice, problem } from "./notices.js";
import { refusal } from "./permissions.js";
import { ago, count, many, size, time } from "./words.js";

const AGAIN_MS = 5_000;
const TYPING_MS = 350;
const DEFAULTS = { words: "", state: "", after: "" };
const STATES = [["", "all"], ["running", "running"], ["failed", "failed"]];
const NONE = ["never", "pushed"];
const GOING = ["running", "stopping", "waiting"];
const STOPPABLE = ["running", "waiting"];
const WAITS = { share: "waits: its team is over its share", kafka: "waits: the log is full" };
const STOPPED = ["stopping", "stopped"]; // a run may end otherwise before it sees that it is to stop
const LOOKS = { running: "good", success: "good", stopping: "warn", stopped: "warn", waiting: "warn", silent: "bad-state", failed: "bad-state" };
const MEANINGS = { pushed: "It sends by itself, to the collector: nothing runs.", never: "No run has begun yet.", stopping: "It ends at its next page.", silent: "It runs, and was not heard of for a minute: its process is dead, frozen, or has no tracker. The next run goes on.", waiting: "It gave its slot back at a page, and goes on from there.", stopped: "Somebody had it end before the source did." };
const HEADS = [["Source"], ["Last run"], ["Rows", "number", "That the run read"], ["Rows/s", "number", "Lately; of a run that ended, over all of it"], ["Position"], ["Behind", "number", "How far the run was behind the source's end, where the source can say"], ["Last success"], ["Next run", "", "By its schedule, were its DAG not paused"], [""]];

const page = document.getElementById("page");
let view = { ...DEFAULTS };
let before = []; // where the pages before this one began
let me = null;
let parts = null;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  view = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, given.get(name) ?? ""]));
  if (!STATES.some(([state]) => state === view.state)) view.state = "";
}

function change(part) {
  view = { ...view, after: "", ...part };
  if (!view.after) before = [];
  const given = Object.entries(view).filter(([, value]) => value);
  history.replaceState(null, "", `${location.pathname}${location.search}${given.length ? `#${new URLSearchParams(given)}` : ""}`);
  tellOuter();
  return load();
}

/** Draw the page's frame for the address's view, and ask. */
function show() {
  read();
  before = [];
  tellOuter();
  parts = { totals: h("div", { class: "totals", "aria-live": "polite" }), table: h("div", { class: "table-frame" }), pager: h("nav", { class: "pager", "aria-label": "Pages" }) };
  fill(page, h("header", { class: "head" }, h("div", {}, h("h1", {}, "Sources"),
    h("p", { class: "muted" }, "How far each source is read: its run, what is left, when it succeeded last.")), parts.totals),
  finder(), parts.table, parts.pager);
  fill(parts.table, waiting());
  return load();
}

function finder() {
  let typing = 0;
  const words = (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ words: event.target.value }), TYPING_MS);
  };
  return h("form", { class: "finder", role: "search", onsubmit: (event) => event.preventDefault() },
    h("input", { type: "search", name: "words", value: view.words, "aria-label": "Find by name or team", placeholder: "Find by name or team", autocomplete: "off", spellcheck: "false", maxlength: "300", oninput: words }),
    h("fieldset", { class: "spans" }, h("legend", { class: "sr-only" }, "Which runs"), STATES.map(([state, text]) =>
      h("label", {}, h("input", { type: "radio", name: "state", value: state, checked: state === view.state, onchange: () => change({ state }) }), h("span", {}, text)))));
}

async function numbers(signal, isCurrent) {
  const found = await ask("/sources", { query: view, signal });
  if (isCurrent()) draw(found);
}

function draw(found) {
  const tile = (number, words, look) => h("div", { class: `tile ${look ?? ""}` }, h("strong", {}, number), h("span", {}, words));
  const focused = document.activeElement?.closest("tr[data-id]")?.dataset.id;
  fill(parts.totals, tile(count(found.total), found.total === 1 ? "source" : "sources"), tile(count(found.running), "running"), tile(count(found.failed), "failed", found.failed ? "bad" : ""),
    h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: () => load() }, icon("refresh")));
  fill(parts.table, found.sources.length ? h("table", { class: "pipelines sources" }, h("caption", { class: "sr-only" }, "Sources"),
    h("thead", {}, h("tr", {}, HEADS.map(([words, look, title]) => h("th", { scope: "col", class: look, title }, words || h("span", { class: "sr-only" }, "Actions"))))),
    h("tbody", {}, found.sources.map(row))) : empty());
  if (focused) [...parts.table.querySelectorAll("tr[data-id]")].find((one) => one.dataset.id === focused)?.querySelector("button")?.focus({ preventScroll: true });
  drawPager(found);
}

function row(one) {
  const cell = (label, look, ...content) => h("td", { class: look, "data-label": label }, ...content);
  const at = (moment, none) => (moment ? h("time", { datetime: moment, title: `${time(moment)} UTC` }, ago(moment)) : h("span", { class: "muted" }, none));
  return h("tr", { "data-id": one.pipeline_id },
    h("th", { scope: "row" }, h("a", { href: `balance#${new URLSearchParams({ pipeline: one.pipeline_id })}`, title: `The balance of ${one.pipeline}` }, one.pipeline), h("span", { class: "sub" }, `${one.team}, ${one.connector || "nothing deployed"}`)),
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

function empty() {
  const narrowed = view.words || view.state;
  const words = narrowed ? ["No source matches.", "Change the words, or show all."] : ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`."];
  return h("div", { class: "empty" }, icon(narrowed ? "check" : "clock"), h("p", {}, words[0]), h("p", { class: "muted" }, words[1]));
}

function drawPager(found) {
  const step = (label, name, onclick) => h("button", { type: "button", class: "button icon-only", "aria-label": label, title: label, disabled: !onclick, onclick }, icon(name));
  const turn = (after) => change({ after }).then(() => page.scrollIntoView({ block: "start" }));
  const next = () => {
    before.push(view.after);
    turn(found.next);
  };
  fill(parts.pager, h("span", { class: "muted shown" }, found.sources.length ? `${many(found.sources.length, "source")} of ${count(found.total)}, by name` : ""),
    step("First page", "first", view.after ? () => change({}) : null), step("Previous page", "back", before.length ? () => turn(before.pop()) : null),
    step("Next page", "next", found.next ? next : null));
}

async function prepare() {
  me = await ask("/me");
}

const load = live(page, { againMs: AGAIN_MS, prepare, show, load: numbers, failed: (error, again) => fill(parts.table, problem(error, again)) });
