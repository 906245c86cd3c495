// The teams of one cluster: a table, fifty rows at a time, with the lag of each over time.

import { spark } from "./chart.js";
import { ask } from "./client.js";
import { cores, hotPartitions, rate, span, teamMarks } from "./cluster_card.js";
import { fill, h } from "./dom.js";
import { ago, count, many, time } from "./words.js";

const ROWS = 50; // as many as the API takes at once

export class TeamTable {
  /** `first`: the team that comes first, whatever the order. */
  constructor(first = "") {
    this.first = first;
    this.element = h("div", {});
    this.shown = ROWS;
    this.histories = new Map();
    this.range = "";
  }

  /** Draw a cluster's teams; the lags over time are those known. */
  draw(cluster) {
    const ahead = (team) => (team.team === this.first ? 1 : 0);
    cluster = { ...cluster, teams: [...cluster.teams].sort((one, other) => ahead(other) - ahead(one)) };
    this.cluster = cluster;
    const teams = cluster.teams.slice(0, this.shown);
    const more = cluster.teams.length - teams.length;
    const heads = [["Team"], ["In/s", "number"], ["Out/s", "number"], ["Cores", "number"], ["Waiting", "number"], ["Lag", "number"], ["Over time"], ["Why it is here"]];
    fill(this.element, teams.length
      ? [h("div", { class: "table-frame" }, h("table", { class: "teams" }, h("caption", { class: "sr-only" }, `Teams of ${cluster.name}`),
        h("thead", {}, h("tr", {}, heads.map(([words, look]) => h("th", { scope: "col", class: look }, words)))),
        h("tbody", {}, teams.map((team) => this.row(team))))),
      more > 0 && h("button", { type: "button", class: "button more-teams", onclick: () => this.more() }, `Show ${many(Math.min(more, ROWS), "more team")} of ${count(more)}`)]
      : h("p", { class: "muted" }, "There is no team in it that you may see."));
    return this.element;
  }

  row(team) {
    const late = team.lag_s > this.cluster.lag_objective_s;
    const cell = (label, look, ...content) => h("td", { class: look, "data-label": label }, ...content);
    return h("tr", { "data-team": team.team, class: team.team === this.first ? "first" : null },
      h("th", { scope: "row", class: "team-name" }, team.team, teamMarks(team), hotPartitions(team)),
      cell("In/s", "number", rate(team.arrival_per_s)), cell("Out/s", "number", rate(team.processed_per_s)), cell("Cores", "number", cores(team.demand_cores)),
      cell("Waiting", "number", count(team.waiting)), cell("Lag", `number ${late ? "bad" : ""}`, span(team.lag_s)),
      cell("Over time", "spark", this.spark(team.team)),
      cell("Why", "reason", team.reason, team.since && h("span", { class: "sub", title: `${time(team.since)} UTC` }, `since ${ago(team.since)}`)));
  }

  spark(team) {
    const values = this.histories.get(team);
    if (!values) return null;
    const known = values.filter((one) => one !== null);
    return spark([{ look: "lag", values }], `lag of ${team}: at most ${span(Math.max(0, ...known))}`);
  }

  async more() {
    this.shown += ROWS;
    this.draw(this.cluster);
    await this.load(this.range);
  }

  /** Ask for the lags over time of the teams that are drawn. */
  async load(range, signal) {
    if (this.range !== range) this.histories.clear();
    this.range = range;
    const names = (this.cluster?.teams ?? []).slice(0, this.shown).map((one) => one.team);
    for (let first = 0; first < names.length; first += ROWS) {
      const some = names.slice(first, first + ROWS);
      const found = await ask("/team-history", { query: { span: range, team: some }, signal });
      for (const name of some) if (found.series[name]) this.histories.set(name, found.series[name].lag_s);
    }
    for (const line of this.element.querySelectorAll("tr[data-team]")) fill(line.querySelector(".spark"), this.spark(line.dataset.team));
  }
}
