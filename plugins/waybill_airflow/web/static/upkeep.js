// The jobs of upkeep: one line when all is well, else a line for each that is not.

import { h, icon } from "./dom.js";
import { ago } from "./words.js";

const WELL = new Set(["ok", "running"]);

/** Draw the jobs of `/upkeep`: folded; open where one fails, is late, or is paused. */
export function upkeep({ jobs }) {
  const ill = jobs.filter((one) => !WELL.has(one.state));
  const words = ill.length ? `Upkeep: ${ill.map((one) => `${one.job} ${one.state === "paused" ? "is paused" : one.state === "late" ? "is late" : "fails"}`).join(", ")}` : `Upkeep: ${jobs.length} jobs, each succeeded lately`;
  return h("details", { open: ill.length > 0 },
    h("summary", {}, icon(ill.length ? "alert" : "check"), words),
    h("div", { class: "jobs", role: "group", "aria-label": "Jobs", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, ["job", "state", "last success", "outcome", "error"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, jobs.map((one) => h("tr", {}, h("th", { scope: "row" }, one.job), h("td", { class: WELL.has(one.state) ? "" : "bad" }, one.state === "paused" ? `paused by ${one.paused_by}` : one.state),
        h("td", {}, one.succeeded_at ? ago(one.succeeded_at) : "never"), h("td", {}, outcome(one)), h("td", {}, one.failures ? one.error ?? "(of several teams)" : "")))))));
}

function outcome(one) {
  return Object.entries(one.outcome).filter(([, value]) => value).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
}
