// The page "Clusters": how each virtual cluster is, over time too, and what was decided, and why.

import { tellOuter } from "./address.js";
import { ask } from "./client.js";
import { clusterActions } from "./cluster_actions.js";
import { card, decisionList, problemList, span as words } from "./cluster_card.js";
import { fill, h, icon } from "./dom.js";
import { live, spanChoice } from "./live_page.js";
import { problem } from "./notices.js";
import { TeamTable } from "./team_table.js";
import { count } from "./words.js";

const AGAIN_MS = 20_000;
const SPANS = [["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"]];

const page = document.getElementById("page");
const view = { span: "6h", cluster: "", team: "" };
let world = null;
let parts = null;
let table = null;

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  view.span = SPANS.some(([span]) => span === given.get("span")) ? given.get("span") : "6h";
  view.cluster = given.get("cluster") ?? "";
  view.team = given.get("team") ?? "";
}

function hashOf({ span, cluster, team }) {
  const given = Object.entries({ span: span === "6h" ? "" : span, cluster, team }).filter(([, value]) => value);
  return `#${new URLSearchParams(given).toString()}`;
}

function go(part) {
  history.pushState(null, "", location.pathname + location.search + hashOf({ ...view, ...part }));
  return show();
}

/** Draw the page's frame for the view, and ask. */
function show() {
  read();
  tellOuter();
  table = view.cluster ? new TeamTable(view.team) : null;
  parts = { title: h("h1", {}), words: h("p", { class: "muted" }), totals: h("div", { class: "totals", "aria-live": "polite" }), crumbs: h("div", {}), state: h("div", { class: "states" }), actions: h("div", {}), cards: h("div", { class: "clusters" }), teams: h("div", {}), decisions: h("section", { class: "decided", "aria-labelledby": "decided" }) };
  fill(page, parts.crumbs, h("header", { class: "head" }, h("div", {}, parts.title, parts.words), parts.totals), parts.state,
    h("div", { class: "heat-bar" }, spanChoice(page, SPANS, view.span, (span) => go({ span })), h("p", { class: "muted mark-key" }, h("i", {}), "a team came or went", h("i", { class: "hot-key" }), "hot team or partition")), parts.actions, parts.cards, parts.teams, parts.decisions);
  return load();
}

/** Ask for the view's numbers; an answer that a later question made stale is dropped. */
async function numbers(signal, isCurrent) {
  const [found, numbersOverTime] = await Promise.all([ask("/clusters", { signal }), ask("/cluster-history", { query: { span: view.span }, signal })]);
  if (!isCurrent()) return;
  const own = view.team && !view.cluster && found.clusters.find((one) => one.teams.some((each) => each.team === view.team));
  if (own) { // the address names a team: its cluster, with the team at the top
    history.replaceState(null, "", location.pathname + location.search + hashOf({ ...view, cluster: own.name }));
    return show();
  }
  draw(found, numbersOverTime);
  await table?.load(view.span, signal);
}

function draw(found, history) {
  const read = document.activeElement?.closest(".plot")?.dataset.chart;
  const one = found.clusters.find((cluster) => cluster.name === view.cluster);
  const shown = view.cluster ? found.clusters.filter((cluster) => cluster === one) : found.clusters;
  const decisions = found.decisions.filter((each) => !view.cluster || each.old === view.cluster || each.new === view.cluster);
  document.title = one ? `${one.name} · Clusters` : "Clusters";
  fill(parts.title, view.cluster || "Clusters");
  fill(parts.words, "Each team's events are processed by the application of one virtual cluster. The coordinator measures each minute, and moves a team only for a reason.");
  fill(parts.crumbs, view.cluster && h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: hashOf({ ...view, cluster: "", team: "" }) }, icon("back"), "All clusters")));
  drawTotals(shown);
  fill(parts.state, stale(found), problemList(found.problems), view.cluster && !one && h("div", { class: "empty" }, icon("info"), h("p", {}, "There is no such cluster any more."), h("p", { class: "muted" }, "Go back to all clusters.")));
  fill(parts.cards, shown.map((cluster) => card(cluster, { grid: history, series: history.series[cluster.name], hot: history.hot[cluster.name], decisions, own: world.me.teams !== "all", href: view.cluster ? null : hashOf({ ...view, cluster: cluster.name }) })));
  fill(parts.actions, one && clusterActions(one, load));
  fill(parts.teams, one && table.draw(one));
  fill(parts.decisions, h("h2", { id: "decided" }, "Decisions"), decisionList(decisions));
  if (read) [...page.querySelectorAll(".plot")].find((one) => one.dataset.chart === read)?.focus({ preventScroll: true });
}

function drawTotals(shown) {
  const tile = (number, text, look) => h("div", { class: `tile ${look ?? ""}` }, h("strong", {}, number), h("span", {}, text));
  const sum = (name) => shown.reduce((all, one) => all + (one[name] ?? 0), 0);
  const teams = shown.reduce((all, one) => all + one.teams.length, 0);
  const late = shown.filter((one) => one.lag_s > one.lag_objective_s).length;
  fill(parts.totals,
    !view.cluster && tile(count(shown.length), shown.length === 1 ? "cluster" : "clusters"),
    tile(count(teams), teams === 1 ? "team" : "teams"), tile(sum("demand_cores").toFixed(1), `cores busy, ${count(sum("needed_cores"))} needed`),
    tile(words(Math.max(0, ...shown.map((one) => one.lag_s))), late ? "longest lag, over its objective" : "longest lag", late ? "bad" : ""),
    h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: load }, icon("refresh")));
}

function stale(found) {
  if (found.clusters.some((one) => one.needed_cores !== null)) return null;
  const words = found.version ? "The coordinator did not look for ten minutes: teams stay where they are." : "The coordinator has not looked yet.";
  return h("div", { class: "callout warning", role: "status" }, icon("alert"), h("div", {}, h("p", {}, words, " Its DAG is ", h("code", {}, "coordinate"), ": see that it is not paused.")));
}

async function prepare() {
  world = { me: await ask("/me") };
}

const load = live(page, { againMs: AGAIN_MS, prepare, show, load: numbers, failed: (error, again) => fill(parts.state, problem(error, again)) });
