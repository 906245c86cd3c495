// One virtual cluster as the page "Clusters" shows it, and the decisions about teams and topics.

import { chart } from "./chart.js";
import { h, icon } from "./dom.js";
import { ago, count, duration, many, plain, time } from "./words.js";

const TOP_TEAMS = 5;
const TOP_PROBLEMS = 3;
const KINDS = { new: "new team", pin: "pinned", gone: "cluster gone", drain: "drained", hot: "hot", load: "load", asked: "by hand", grow: "more partitions" };

/** Seconds → "40 s", "1 min", "3 min 5 s". */
export function span(seconds) {
  return duration(seconds).replace(/ 0 (s|min)$/, "");
}

/** Cores → "1.50"; what is less than a hundredth is not shown as nothing. */
export function cores(number) {
  return number > 0 && number < 0.005 ? "< 0.01" : number.toFixed(2);
}

/** Events a second → "0.4", "1,204". */
export function rate(number) {
  return number >= 10 || number === 0 ? count(Math.round(number)) : number.toFixed(1);
}

/** Return the badges and hot spots of a team. */
export function teamMarks(team) {
  return [
    team.hot && h("span", { class: "state hot", title: "It takes so much of its cluster that no team is moved in beside it." }, "hot"),
    team.pinned_by !== null && h("span", { class: "state", title: `Pinned by ${team.pinned_by}` }, "pinned"),
  ];
}

/** Return a line for each partition with most of what waits for a team. */
export function hotPartitions(team) {
  return team.hot_partitions.map((hot) =>
    h("span", { class: "sub hot-spot" }, h("code", {}, hot.topic), `, partition ${hot.partition}: ${many(hot.waiting, "event")} waiting, ${Math.round(hot.share * 100)} % of the team's`));
}

/**
 * Return a cluster's card. `grid`, `series` and `hot` are of its history; `own`: only some teams are the
 * user's; `href` leads to it alone, null where it is alone already.
 */
export function card(cluster, { grid, series, hot, decisions, own, href }) {
  const name = h(href ? "h2" : "p", { class: "cluster-name" }, href ? h("a", { href }, cluster.name) : h("span", { class: "sr-only" }, cluster.name), states(cluster));
  return h("article", { class: "cluster", "data-cluster": cluster.name, "aria-label": `Cluster ${cluster.name}` },
    h("header", {}, name, figures(cluster, own)),
    servingLines(cluster),
    series ? charts(cluster, grid, series, hot, decisions) : h("p", { class: "muted nothing-drawn" }, "Nothing was measured in this range."),
    href && teamLines(cluster, href, own));
}

function states(cluster) {
  return [
    cluster.state === "draining" && h("span", { class: "state warn" }, "draining"),
    cluster.is_served ? h("span", { class: "state good" }, "at work") : h("span", { class: "state bad-state", title: unservedWords(cluster) }, isUnable(cluster) ? "reads nothing" : "no application"),
    ...cluster.applications.filter((one) => one.state !== "at work" && one.epoch > 0).map((one) =>
      h("span", { class: one.state === "not heard of" ? "state bad-state" : "state warn", title: applicationWords(one) }, `${one.kind} ${one.state}`)),
  ];
}

function isUnable(cluster) {
  const { serving } = cluster.applications.find((one) => one.kind === "processing") ?? {};
  return serving ? serving.running === 0 && serving.failing > 0 : false;
}

function unservedWords(cluster) {
  const why = cluster.unserved || (isUnable(cluster) ? "its application of processing can read none of its topics" : "its application of processing is not at work");
  return `No team comes in: ${why}. ${isUnable(cluster) ? "" : "Look at the DAG that supervises it."}`.trim();
}

function applicationWords(one) {
  const version = one.code_version ? `, Waybill ${one.code_version}` : "";
  const stopped = one.wanted === "stopped" && one.wanted_by ? `; stopped by ${one.wanted_by}` : "";
  return `Start ${one.epoch} on ${one.backend}${version}${one.failures ? `; ${count(one.failures)} deaths in a row` : ""}${stopped}`;
}

/** Return what applications do not serve, and why; why they ended. */
function servingLines(cluster) {
  const lines = cluster.applications.flatMap((one) => [notServed(one), ended(one)]).filter(Boolean);
  if (!lines.length) return null;
  return h("div", { class: "callout warning serving", role: "status" }, icon("alert"), h("div", {}, lines));
}

function notServed({ kind, serving }) {
  if (!serving || serving.running >= serving.wanted) return null;
  const { wanted, running, failing, stopped, held } = serving;
  const waits = wanted - running - failing - stopped;
  const left = [failing > 0 && `${count(failing)} ${failing === 1 ? "fails" : "fail"}`, stopped > 0 && `${count(stopped)} stopped`, waits > 0 && `${count(waits)} ${waits === 1 ? "waits" : "wait"}`].filter(Boolean).join(", ");
  const verbs = { waits: "waits ", stopped: "is stopped: ", fails: "fails: " };
  const more = wanted - running - held.length;
  return [h("p", {}, h("strong", {}, kind), `: serving ${count(running)} of ${many(wanted, kind === "processing" ? "topic" : "destination")}; ${left}`),
    held.length > 0 && h("ul", {}, held.map((one) => h("li", {}, h("code", {}, one.name), ` ${verbs[one.kind] ?? "fails: "}${one.why}`)), more > 0 && h("li", { class: "muted" }, `and ${count(more)} more`))];
}

function ended({ kind, state, failures, last_end: end }) {
  if (!end || !end.why || (state === "at work" && !failures)) return null;
  return h("p", {}, h("strong", {}, kind), `: start ${count(end.epoch)} ended `, h("time", { datetime: end.at, title: `${time(end.at)} UTC` }, ago(end.at)), `: ${end.why}`);
}

function figures(cluster, own) {
  const sum = (field) => cluster.teams.reduce((all, team) => all + team[field], 0);
  const short = cluster.cores !== null && cluster.needed_cores > cluster.cores;
  const needs = cluster.needed_cores === null ? "" : `, needs ${count(cluster.needed_cores)}`;
  const figure = (label, number, more, bad) => h("div", { class: bad ? "bad" : null }, h("dt", {}, label), h("dd", {}, h("strong", {}, number), " ", h("span", {}, more)));
  return h("dl", { class: "figures" },
    figure("Lag", span(cluster.lag_s), `of ${span(cluster.lag_objective_s)}`, cluster.lag_s > cluster.lag_objective_s),
    figure("Cores busy", cluster.demand_cores.toFixed(1), `${cluster.cores === null ? "no limit" : `of ${count(cluster.cores)}`}${needs}`, short),
    figure(own ? "Events/s, your teams" : "Events/s", rate(sum("arrival_per_s")), `in, ${rate(sum("processed_per_s"))} out`),
    figure("Waiting", count(sum("waiting")), sum("waiting") === 1 ? "event" : "events"),
    figure("Topics", count(cluster.consumers), cluster.max_consumers === null ? "" : `of ${count(cluster.max_consumers)}`));
}

function charts(cluster, grid, series, hot, decisions) {
  const marks = decisions.filter((one) => one.kind !== "grow" && (one.old === cluster.name || one.new === cluster.name))
    .map((one) => [Date.parse(one.at), `${one.team}: ${one.old ?? "nowhere"} → ${one.new}`])
    .filter(([ms]) => ms >= Date.parse(grid.since));
  const objective = series.lag_s.map(() => cluster.lag_objective_s);
  const lines = [{ look: "busy", words: "busy", values: series.demand_cores }, { look: "needed", words: "needed", values: series.needed_cores }];
  if (series.cores.some((one) => one !== null)) lines.push({ look: "limit", words: "limit", values: series.cores });
  const spots = [];
  for (const one of hot ?? []) (spots[one.step] ??= []).push(one.topic === null ? `team ${one.team}` : `${one.topic}/${one.partition}`);
  const speed = [{ look: "lag", words: "in", values: series.arrival_per_s }, { look: "busy", words: "out", values: series.processed_per_s }];
  return h("div", { class: "charts" },
    chart({ key: `lag ${cluster.name}`, title: "Lag", grid, marks, spots, shown: span, lines: [{ look: "lag", words: "lag", values: series.lag_s }, { look: "limit", words: "objective", values: objective }] }),
    chart({ key: `speed ${cluster.name}`, title: "Events/s", grid, marks, shown: rate, lines: speed }),
    chart({ key: `cores ${cluster.name}`, title: "Cores", grid, marks, shown: (number) => String(Number(number.toFixed(1))), lines }));
}

function teamLines(cluster, href, own) {
  if (!cluster.teams.length) return h("p", { class: "muted nothing-drawn" }, own ? "No team of yours is in it." : "No team is in it.");
  const more = cluster.teams.length - TOP_TEAMS;
  return h("ul", { class: "team-lines" },
    cluster.teams.slice(0, TOP_TEAMS).map((team) => h("li", { "data-team": team.team },
      h("span", { class: "team-name" }, team.team, teamMarks(team)),
      h("span", { class: "muted" }, `${rate(team.arrival_per_s)}/s in, ${rate(team.processed_per_s)}/s out`),
      h("span", { class: "muted" }, `${cores(team.demand_cores)} cores`),
      h("span", { class: team.lag_s > cluster.lag_objective_s ? "bad" : "muted" }, `lag ${span(team.lag_s)}`),
      hotPartitions(team))),
    more > 0 && h("li", {}, h("a", { href }, `${many(more, "more team")}`)));
}

/** Return what the coordinator could not do; the first few open. */
export function problemList(problems) {
  if (!problems.length) return null;
  const lines = (some) => some.map((one) => h("p", {}, one));
  const rest = problems.slice(TOP_PROBLEMS);
  return h("div", { class: "callout warning", role: "status" }, icon("alert"), h("div", {}, lines(problems.slice(0, TOP_PROBLEMS)),
    rest.length > 0 && h("details", {}, h("summary", {}, `${count(rest.length)} more`), lines(rest))));
}

/** Return the decisions, the newest first. */
export function decisionList(decisions) {
  if (!decisions.length) return h("p", { class: "muted" }, "Nothing was decided.");
  return h("ol", { class: "decisions" }, decisions.map((one) => h("li", {},
    h("time", { datetime: one.at, title: `${time(one.at)} UTC` }, ago(one.at)),
    h("div", {},
      h("p", {}, h("strong", {}, one.team), " ", one.kind !== "grow" && [h("span", { class: "way" }, one.old ?? "nowhere", " → ", one.new), " "], h("span", { class: `state ${one.kind === "hot" ? "hot" : ""}` }, KINDS[one.kind] ?? plain(one.kind))),
      h("p", { class: "reason" }, one.reason),
      h("p", { class: "muted by" }, `${one.made_by}, ${one.version === null ? "" : `version ${count(one.version)}, `}${time(one.at)} UTC`),
      one.problems.length > 0 && h("details", {}, h("summary", {}, `${many(one.problems.length, "problem")} at the time`), one.problems.map((words) => h("p", { class: "muted" }, words)))))));
}
