// The page "Pipelines": a line each, found by words, in pages by name; rates come behind the lines.

import { tellOuter } from "./address.js";
import { spark } from "./chart.js";
import { ask } from "./client.js";
import { rate, span } from "./cluster_card.js";
import { fill, h, icon } from "./dom.js";
import { stageClass, waiting } from "./list.js";
import { live } from "./live_page.js";
import { named } from "./names.js";
import { notice, problem } from "./notices.js";
import { ago, count, many, time } from "./words.js";

const AGAIN_MS = 30_000;
const TYPING_MS = 350;
const STALE_MS = 5 * 60_000;
const LATE_S = 60;
const RATE_MINUTES = 5;
const DEFAULTS = { words: "", attention: "", after: "" };
const HEADS = [["Pipeline"], ["In/s", "number", "Taken in, over five minutes"], ["Out/s", "number", "Delivered, over five minutes: what came in before, and replays, as well"], ["Last hour"], ["Lag", "number", "For how long the oldest unread event of its topic waits; pipelines of one team into one destination share a topic."], ["Parked", "number"], ["Last error"]];

const page = document.getElementById("page");
let view = { ...DEFAULTS };
let before = []; // where the pages before this one began
let world = null;
let parts = null;
let toldRates = false;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  view = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, given.get(name) ?? ""]));
}

function write() {
  const given = Object.entries(view).filter(([, value]) => value);
  history.replaceState(null, "", `${location.pathname}${location.search}${given.length ? `#${new URLSearchParams(given)}` : ""}`);
  tellOuter();
}

function change(part) {
  view = { ...view, after: "", ...part };
  if (!view.after) before = [];
  write();
  return load();
}

/** Draw the page's frame for the address's view, and ask. */
function show() {
  read();
  before = [];
  tellOuter();
  parts = { totals: h("div", { class: "totals", "aria-live": "polite" }), table: h("div", { class: "table-frame" }), pager: h("nav", { class: "pager", "aria-label": "Pages" }) };
  fill(page, h("header", { class: "head" }, h("div", {}, h("h1", {}, "Pipelines"),
    h("p", { class: "muted" }, "How much comes in and is delivered, how long it waits, and what could not go on.")), parts.totals),
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
    h("label", { class: "tick" }, h("input", { type: "checkbox", name: "attention", checked: view.attention === "true", onchange: (event) => change({ attention: event.target.checked ? "true" : "" }) }), "Only held, or with events parked"),
    h("ul", { class: "keys" }, h("li", { class: "lag" }, "taken in"), h("li", { class: "busy" }, "delivered")));
}

/** Ask for the page of the view, then for its rates; a stale answer is dropped. */
async function numbers(signal, isCurrent) {
  parts.table.setAttribute("aria-busy", "true");
  try {
    const found = await ask("/pipelines", { query: view, signal });
    if (!isCurrent()) return;
    draw(found);
    parts.table.removeAttribute("aria-busy");
    if (found.pipelines.length) await loadRates(found.pipelines, signal, isCurrent);
  } finally {
    if (isCurrent()) parts.table.removeAttribute("aria-busy");
  }
}

/** Rates may take longer than the lines, or not come at all: the lines stay. */
async function loadRates(rows, signal, isCurrent) {
  try {
    const found = await ask("/pipeline-rates", { query: { pipeline: rows.map((one) => one.id) }, signal });
    if (!isCurrent()) return;
    for (const line of parts.table.querySelectorAll("tr[data-id]")) drawRates(line, found.pipelines[line.dataset.id], found.since);
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

function draw(found) {
  const tile = (number, words, look) => h("div", { class: `tile ${look ?? ""}` }, h("strong", {}, number), h("span", {}, words));
  fill(parts.totals, tile(count(found.total), found.total === 1 ? "pipeline" : "pipelines"), tile(count(found.held), "held", found.held ? "warn" : ""),
    h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: load }, icon("refresh")));
  const kept = new Map([...parts.table.querySelectorAll("tr[data-id]")].map((line) => [line.dataset.id, line]));
  fill(parts.table, found.pipelines.length ? h("table", { class: "pipelines" }, h("caption", { class: "sr-only" }, "Pipelines"),
    h("thead", {}, h("tr", {}, HEADS.map(([words, look, title]) => h("th", { scope: "col", class: look, title }, words)))),
    h("tbody", {}, found.pipelines.map((one) => row(one, kept.get(one.id))))) : empty());
  drawPager(found);
}

/** Return a pipeline's line; rates are those of the line before until newer ones come. */
function row(one, old) {
  const kept = (name) => [...(old?.querySelector(name)?.childNodes ?? [])];
  const hash = (given) => `#${new URLSearchParams(given)}`;
  const cell = (label, look, ...content) => h("td", { class: look, "data-label": label }, ...content);
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
  const title = world.titles.get(error.error_type) ?? error.error_type;
  return [h("a", { href: `parked${hash({ id: error.partition_id })}` }, title), h("span", { class: "sub" }, h("span", { class: `stage ${stageClass(error.stage)}` }, error.stage), " ", named(error.event_name), ", ", h("time", { datetime: error.at, title: `${time(error.at)} UTC` }, ago(error.at)))];
}

function empty() {
  const narrowed = view.words || view.attention;
  const words = narrowed ? ["No pipeline matches.", view.attention && !view.words ? "Nothing is held, and nothing is parked." : "Change the words, or show all."] : ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`."];
  return h("div", { class: "empty" }, icon(narrowed ? "check" : "clock"), h("p", {}, words[0]), h("p", { class: "muted" }, words[1]));
}

function drawPager(found) {
  const step = (label, name, onclick) => h("button", { type: "button", class: "button icon-only", "aria-label": label, title: label, disabled: !onclick, onclick }, icon(name));
  const turn = (after) => change({ after }).then(() => page.scrollIntoView({ block: "start" }));
  const next = () => {
    before.push(view.after);
    turn(found.next);
  };
  fill(parts.pager, h("span", { class: "muted shown" }, found.pipelines.length ? `${many(found.pipelines.length, "pipeline")} of ${count(found.total)}, by name` : ""),
    step("First page", "first", view.after ? () => change({}) : null), step("Previous page", "back", before.length ? () => turn(before.pop()) : null),
    step("Next page", "next", found.next ? next : null));
}

async function prepare() {
  const [me, catalogue] = await Promise.all([ask("/me"), ask("/catalogue")]);
  world = { me, titles: new Map(catalogue.error_types.map((one) => [one.code, one.title])) };
}

const load = live(page, { againMs: AGAIN_MS, prepare, show, load: numbers, failed: (error, again) => fill(parts.table, problem(error, again)) });
