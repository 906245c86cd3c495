// The page "Balance": the breaches, and how each minute stands, of all pipelines or of one.

import { tellOuter } from "./address.js";
import { Breaches } from "./breaches.js";
import { ask } from "./client.js";
import { fill, h, icon, redraw, refill } from "./dom.js";
import { Heat, legend } from "./heat.js";
import { live, spanChoice } from "./live_page.js";
import { named } from "./names.js";
import { problem } from "./notices.js";
import { Pager } from "./pager.js";
import { upkeep } from "./upkeep.js";
import { ago, count, many } from "./words.js";

const AGAIN_MS = 20_000;
const STALE_MS = 5 * 60_000;
const ROWS = 100;
const EVENT_NAMES = 200;
const SPANS = [["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["7d", "7 d"]];
const IN_WORDS = { "1h": "hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days" };

const page = document.getElementById("page");
const view = { span: "6h", pipeline: "", after: "" };
const heat = new Heat();
let world = null;
let breaches = null;
let parts = null;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  view.span = SPANS.some(([span]) => span === given.get("span")) ? given.get("span") : "6h";
  view.pipeline = given.get("pipeline") ?? "";
  view.after = given.get("after") ?? "";
}

function hashOf({ span, pipeline, after }) {
  const given = Object.entries({ span: span === "6h" ? "" : span, pipeline, after: pipeline ? "" : after }).filter(([, value]) => value);
  return `#${new URLSearchParams(given).toString()}`;
}

function go(part) {
  history.pushState(null, "", location.pathname + location.search + hashOf({ ...view, ...part }));
  return show();
}

/** Show another page of pipelines: all else stays as it is. */
function turn(after) {
  view.after = after;
  history.replaceState(null, "", location.pathname + location.search + hashOf(view));
  tellOuter();
  return load().then(() => heat.element.scrollIntoView({ block: "nearest" }));
}

/** Draw the page's frame for the view, and ask. */
function show() {
  read();
  tellOuter();
  parts = { title: h("h1", {}), words: h("p", { class: "muted" }), totals: h("div", { class: "totals", "aria-live": "polite" }), state: h("div", {}), upkeep: h("div", { class: "upkeep" }), crumbs: h("div", {}), pager: new Pager(turn) };
  fill(page, parts.crumbs, h("header", { class: "head" }, h("div", {}, parts.title, parts.words), parts.totals), parts.state, breaches.element,
    h("div", { class: "heat-bar" }, spanChoice(page, SPANS, view.span, (span) => go({ span })), legend()), heat.element, parts.pager.element, parts.upkeep);
  return load();
}

/** Ask for the view's numbers; an answer that a later question made stale is dropped. */
async function numbers(signal, isCurrent) {
  const query = { span: view.span };
  const whole = ask("/balance", { query: { ...query, ...(view.pipeline ? { pipeline: view.pipeline } : { after: view.after, limit: ROWS }) }, signal });
  const rows = view.pipeline ? ask(`/balance/${encodeURIComponent(view.pipeline)}/minutes`, { query: { ...query, limit: EVENT_NAMES }, signal }) : null;
  const [found, own_rows, jobs] = await Promise.all([whole, rows, view.pipeline ? null : ask("/upkeep", { signal })]);
  if (!isCurrent()) return;
  const open = await breaches.load(view.pipeline, signal);
  if (isCurrent()) draw(found, own_rows, open);
  if (isCurrent()) drawUpkeep(jobs);
}

function draw(found, rows, open) {
  const pipeline = found.pipelines.find((one) => one.id === view.pipeline);
  const shown = view.pipeline ? found.pipelines.filter((one) => one === pipeline) : found.pipelines;
  document.title = pipeline ? `${pipeline.name} · Balance` : "Balance";
  fill(parts.title, pipeline ? pipeline.name : "Balance");
  fill(parts.words, pipeline ? totals(pipeline) : "Every event that was taken in is delivered, parked, filtered, discarded by name, or still on its way: for every minute.");
  refill(parts.crumbs, view.pipeline && crumbs(pipeline));
  drawTotals(found, pipeline, open);
  fill(parts.state, audited(found));
  const lines = rows ? rows.rows.map(eventRow) : shown.map(pipelineRow);
  const more = (rows ?? found).more;
  if (!lines.length || (!view.pipeline && !shown.some((one) => one.cells.length))) {
    heat.element.hidden = !lines.length;
    parts.state.append(empty(found.total, rows));
  } else heat.element.hidden = false;
  if (rows && more) parts.state.append(h("p", { class: "muted" }, `${count(lines.length)} of ${count(lines.length + more)} event names: those with a breach first, then by name.`));
  const words = !rows && found.total > lines.length ? `${many(lines.length, "pipeline")} of ${count(found.total)}, by name` : "";
  parts.pager.draw({ words, after: rows ? "" : view.after, next: rows ? null : found.next });
  if (lines.length) heat.draw(rows ?? found, lines, rows ? "event names" : "pipelines");
}

/** The jobs of upkeep; what somebody opened or folded stays so. */
function drawUpkeep(jobs) {
  const before = parts.upkeep.querySelector("details")?.open;
  redraw(parts.upkeep, () => fill(parts.upkeep, jobs && upkeep(jobs)));
  const drawn = parts.upkeep.querySelector("details");
  if (drawn && before !== undefined) drawn.open = before;
}

/** The ways from one pipeline to the other pages. */
function crumbs(pipeline) {
  const links = pipeline ? [["Its parked events", "parked", { pipeline: pipeline.name }], ["On the page Overview", "overview", { words: pipeline.name }]] : [];
  return h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: hashOf({ ...view, pipeline: "", after: "" }) }, icon("back"), "All pipelines"),
    links.map(([words, name, shown]) => h("a", { href: `${name}#${new URLSearchParams(shown)}` }, words)));
}

function drawTotals(found, pipeline, open) {
  const tile = (number, words, look) => h("div", { class: `tile ${look ?? ""}` }, h("strong", {}, number), h("span", {}, words));
  redraw(parts.totals, () => refill(parts.totals,
    !view.pipeline && tile(count(found.total), found.total === 1 ? "pipeline" : "pipelines"),
    tile(count(open), open === 1 ? "open breach" : "open breaches", open ? "bad" : ""), tile(count(view.pipeline ? pipeline?.totals.parked : found.parked), "parked now"),
    h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: load }, icon("refresh"))));
}

function totals(pipeline) {
  const all = pipeline.totals;
  const left = [["delivered", all.delivered], ["parked now", all.parked], ["filtered", all.filtered], ["superseded", all.superseded], [all.duplicate === 1 ? "duplicate" : "duplicates", all.duplicate], ["discarded", all.discarded], ["quarantined", all.quarantined], ["unrecoverable", all.unrecoverable]];
  const made = all.made > 0 ? ` (and ${count(all.made)} made of them)` : "";
  return `Since its first event ${count(all.taken_in)} taken in${made}: ${left.filter(([, number]) => number).map(([words, number]) => `${count(number)} ${words}`).join(", ") || "all still on their way"}.`;
}

function audited(found) {
  const at = found.audited_at;
  if (at && Date.now() - Date.parse(at) < STALE_MS) return h("p", { class: "muted audited" }, icon("check"), `The auditor looked ${ago(at)}.`);
  const words = at ? `The auditor looked ${ago(at)} for the last time: minutes since then may look better or worse than they are.` : "The auditor has not looked yet.";
  return h("div", { class: "callout warning", role: "status" }, icon("alert"), h("div", {}, h("p", {}, words, " See that the DAG ", h("code", {}, "upkeep"), " is not paused, nor its job ", h("code", {}, "audit"), ".")));
}

function empty(pipelines, rows) {
  const words = !pipelines ? ["No pipeline is deployed yet.", "Deploy one with `waybill pipelines deploy`; its minutes show here."]
    : [`Nothing came in during the last ${IN_WORDS[view.span]}.`, rows && view.span !== "7d" ? "Choose a longer range." : "What comes in shows here within a minute."];
  return h("div", { class: "empty" }, icon("clock"), h("p", {}, words[0]), h("p", { class: "muted" }, words[1]));
}

function pipelineRow(one) {
  const label = [h("a", { href: hashOf({ ...view, pipeline: one.id }), title: `The event names of ${one.name}` }, one.name), h("span", { class: "sub" }, one.team, one.open_breaches > 0 && h("span", { class: "bad" }, ` · ${many(one.open_breaches, "breach").replace("breachs", "breaches")}`))];
  return { key: one.id, name: one.name, label, cells: one.cells };
}

function eventRow(one) {
  return { key: one.event_name, name: one.event_name || "(empty)", label: h("span", { class: "event-name" }, named(one.event_name)), cells: one.cells };
}

async function prepare() {
  world = { me: await ask("/me") };
  breaches = new Breaches(world, load);
}

const load = live(page, { againMs: AGAIN_MS, prepare, show, load: numbers, failed: (error, again) => fill(parts.state, problem(error, again)) });
