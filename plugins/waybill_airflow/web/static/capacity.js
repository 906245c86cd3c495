// The page "Capacity": how long tasks wait, nodes and their workers over time, what was decided, and why.

import { tellOuter } from "./address.js";
import { chart } from "./chart.js";
import { ask } from "./client.js";
import { span as words } from "./cluster_card.js";
import { fill, h, icon } from "./dom.js";
import { live, spanChoice } from "./live_page.js";
import { problem } from "./notices.js";
import { ago, count, time } from "./words.js";

const AGAIN_MS = 20_000;
const SPANS = [["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"]];
const UNITS = { ingestion: "workers", spark: "cores" };

const page = document.getElementById("page");
let chosen = "6h";
let parts = null;

function go(span) {
  history.pushState(null, "", `${location.pathname}${location.search}${span === "6h" ? "" : `#span=${span}`}`);
  return show();
}

/** Draw the page's frame, and ask. */
function show() {
  const given = new URLSearchParams(location.hash.slice(1)).get("span");
  chosen = SPANS.some(([span]) => span === given) ? given : "6h";
  tellOuter();
  parts = { totals: h("div", { class: "totals", "aria-live": "polite" }), state: h("div", { class: "states" }), charts: h("div", { class: "clusters" }), waits: h("section", { class: "decided", "aria-labelledby": "waits" }), nodes: h("section", { class: "decided" }), decisions: h("section", { class: "decided", "aria-labelledby": "decided" }) };
  fill(page, h("header", { class: "head" }, h("div", {}, h("h1", {}, "Capacity"), h("p", { class: "muted" }, "How long tasks wait that may run, and the nodes that follow them. The infra coordinator decides each minute.")), parts.totals), parts.state,
    h("div", { class: "heat-bar" }, spanChoice(page, SPANS, chosen, go)), parts.charts, parts.waits, parts.nodes, parts.decisions);
  return load();
}

async function numbers(signal, isCurrent) {
  const [found, history] = await Promise.all([ask("/capacity", { signal }), ask("/capacity-history", { query: { span: chosen }, signal })]);
  if (isCurrent()) draw(found, history);
}

function draw(found, history) {
  const read = document.activeElement?.closest(".plot")?.dataset.chart;
  drawTotals(found);
  fill(parts.state, found.waiting === null && notMeasured());
  const marks = (kind) => found.decisions.filter((one) => one.kind === kind).map((one) => [Date.parse(one.at), `${one.before} → ${one.after} nodes`]);
  const waits = history.waits;
  const card = (title, charts) => h("article", { class: "cluster", "aria-label": title }, h("header", {}, h("h2", { class: "cluster-name" }, title)), h("div", { class: "charts" }, charts));
  fill(parts.charts,
    card("Waits", [
      chart({ key: "waits", title: "Wait", grid: history, lines: [{ look: "busy", words: "p95", values: waits.p95_s }, { look: "needed", words: "oldest", values: waits.oldest_s }], shown: words }),
      chart({ key: "tasks", title: "Tasks", grid: history, lines: [{ look: "busy", words: "waiting", values: waits.waiting }, { look: "needed", words: "running", values: waits.running }], shown: (one) => one.toFixed(0) })]),
    Object.entries(history.nodes).map(([kind, one]) => card(`${kind === "spark" ? "Spark" : "Ingestion"} nodes`, [
      chart({ key: `nodes ${kind}`, title: "Nodes", grid: history, marks: marks(kind), lines: [{ look: "busy", words: "at work", values: one.ready }, { look: "needed", words: "wanted", values: one.wanted }], shown: (value) => value.toFixed(0) }),
      chart({ key: `units ${kind}`, title: kind === "spark" ? "Cores" : "Workers", grid: history, marks: marks(kind), lines: [{ look: "busy", words: "busy", values: one.busy }, { look: "needed", words: UNITS[kind], values: one.units }], shown: (value) => value.toFixed(1) }),
      chart({ key: `cpu ${kind}`, title: "Utilisation", grid: history, lines: [{ look: "busy", words: "CPU", values: one.utilisation }], shown: percent })])));
  fill(parts.waits, h("h2", { id: "waits" }, "Who waits"), waitTable(found.waits));
  fill(parts.nodes, found.nodes.length > 0 && [h("h2", {}, "Nodes"), nodeTable(found.nodes), followed(found)]);
  fill(parts.decisions, h("h2", { id: "decided" }, "Decisions"), found.last.map((one) => h("p", { class: "muted" }, `${one.kind}, ${ago(one.at)}: ${change(one)}: ${one.reasons.join("; ")}`)), decisionList(found.decisions));
  if (read) [...page.querySelectorAll(".plot")].find((one) => one.dataset.chart === read)?.focus({ preventScroll: true });
}

function drawTotals(found) {
  const tile = (number, text) => h("div", { class: "tile" }, h("strong", {}, number), h("span", {}, text));
  fill(parts.totals,
    found.waiting !== null && [tile(count(found.waiting), "tasks wait"), tile(count(found.running), "tasks run"), tile(words(found.p95_s), "p95 wait")],
    h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: () => load() }, icon("refresh")));
}

function notMeasured() {
  return h("div", { class: "callout warning", role: "status" }, icon("alert"), h("div", {}, h("p", {}, "How long tasks wait was not measured lately: see the job ", h("code", {}, "measure_delays"), " of the DAG ", h("code", {}, "upkeep"), ". Without it nodes stay as they are.")));
}

function table(names, rows) {
  return h("div", { class: "table-frame" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map((one) => h("td", {}, one)))))));
}

function waitTable(waits) {
  if (!waits.length) return h("p", { class: "muted" }, "No task of your teams waits, or began within a minute.");
  return table(["team", "connector", "queue", "waiting", "p50", "p95", "oldest"], waits.map((one) => [one.team || "none", one.connector, one.queue, count(one.waiting), words(one.p50_s), words(one.p95_s), words(one.oldest_s)]));
}

function nodeTable(nodes) {
  return table(["node", "kind", "state", "configured", "workers", "running", "CPU", "I/O wait", "memory", "enhancer"],
    nodes.map((one) => [one.name, one.kind, one.is_heard ? one.state : `${one.state}, not heard of`, count(one.units), one.workers ?? "", one.running ?? "", percent(one.cpu), percent(one.io_wait), percent(one.memory), one.why]));
}

/** Say who has not acknowledged the nodes that were announced last. */
function followed(found) {
  if (!found.version) return null;
  const done = found.followers - found.behind.length;
  const late = found.behind.map((one) => `${one.name} (version ${one.version}${one.is_late ? `, late: ${words(one.waits_s)}` : ""})`).join(", ");
  return h("p", { class: "muted" }, `Version ${found.version} of the nodes is announced; acknowledged by ${done} of ${count(found.followers)} applications${late && `; not by ${late}`}.`);
}

function percent(share) {
  return share === null ? "" : `${Math.round(100 * share)} %`;
}

function change(one) {
  return one.action === "hold" ? `${count(one.before)} nodes stay` : `${count(one.before)} → ${count(one.after)} nodes`;
}

function decisionList(decisions) {
  if (!decisions.length) return h("p", { class: "muted" }, "Nothing was decided that changes the number of nodes.");
  return h("ol", { class: "decisions" }, decisions.map((one) => h("li", {},
    h("time", { datetime: one.at, title: `${time(one.at)} UTC` }, ago(one.at)),
    h("div", {}, h("p", {}, h("strong", {}, one.kind), " ", h("span", { class: "way" }, change(one))), h("p", { class: "reason" }, one.reasons.join("; "))))));
}

const load = live(page, { againMs: AGAIN_MS, prepare: async () => {}, show, load: numbers, failed: (error, again) => fill(parts.state, problem(error, again)) });
