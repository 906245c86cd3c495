// An answer: how far it is, what was found, and of what was not found what is known near it.

import { fill, h, icon } from "./dom.js";
import { drawTrail } from "./trail_line.js";
import { count, many, size } from "./words.js";

const MOST_OPEN = 1;
const FAILED = { failed: "The question failed", cancelled: "The question was cancelled" };

/** Return what is shown while a question is waited for. */
export function drawProgress(query, oncancel) {
  const read = query.objects ? `${count(query.objects_read)} of ${many(query.objects, "object")} read${query.bytes_scanned ? `, ${size(query.bytes_scanned)}` : ""}` : query.state === "queued" ? "Waiting for its turn" : "Looking";
  return h(
    "div", { class: "waiting" },
    h("div", {}, h("p", {}, query.cancel_asked ? "It is told to end." : `${read} …`), h("progress", { max: query.objects || 1, value: query.objects ? query.objects_read : null, "aria-label": "How far it is" })),
    oncancel && h("button", { type: "button", class: "button", disabled: query.cancel_asked, onclick: oncancel }, icon("stop"), "Cancel"),
  );
}

/** Return what a question that has ended is answered with. */
export function drawAnswer(query) {
  if (!query.answer) {
    return h("div", { class: "problem", role: "alert" }, icon("alert"), h("div", {}, h("p", {}, `${FAILED[query.state] ?? query.state}${query.error ? `: ${query.error}` : "."}`)));
  }
  const { trails, missing, ways } = query.answer;
  const noneOfKey = query.question.key && ways.every((way) => !way.events);
  return h(
    "div", { class: "answer" },
    query.question.key && keyWays(ways, query.answer.more, missing.flatMap((one) => one.nearest)),
    trails.length > MOST_OPEN && tally(trails),
    trails.length > MOST_OPEN ? folded(trails) : trails.map((trail) => drawTrail(trail)),
    missing.length > 0 && !noneOfKey && absent(missing),
    (missing.length > 0 || !trails.length) && searched(query.answer),
  );
}

function keyWays(ways, more, nearest) {
  const hits = ways.filter((way) => way.events);
  if (!hits.length) {
    const tried = ways.slice(0, 12).map((way) => h("li", {}, h("span", {}, way.event_name || "(empty)"), " ", h("code", {}, way.key)));
    return h("div", { class: "absent-card" }, h("h2", {}, icon("info"), "No event has this key"), nearest.map((words) => h("p", {}, words)), h("p", { class: "muted" }, "Tried:"), h("ul", { class: "tried" }, tried, ways.length > 12 && h("li", { class: "muted" }, `and ${many(ways.length - 12, "more way")}`)));
  }
  return h("p", { class: "hits" }, hits.map((way) => h("span", {}, many(way.events, "event"), ` ${way.event_name} `, h("code", {}, way.key))), more > 0 && h("span", { class: "muted" }, `the newest are shown, ${count(more)} older are not`));
}

function tally(trails) {
  const states = new Map();
  for (const one of trails) states.set(one.state, (states.get(one.state) ?? 0) + 1);
  return h("p", { class: "tally" }, h("strong", {}, many(trails.length, "event")), [...states].map(([state, number]) => h("span", { class: `verdict-chip ${kind(state)}` }, `${count(number)} ${state}`)));
}

/** Many trails: a line each, drawn when it is opened. */
function folded(trails) {
  return h("div", { class: "folded" }, trails.map((trail) => {
    const body = h("div", { class: "folded-body" });
    const open = (event) => {
      if (event.target.open && !body.hasChildNodes()) fill(body, drawTrail(trail));
    };
    return h(
      "details", { ontoggle: open },
      h("summary", {}, h("span", { class: `verdict-chip ${kind(trail.state)}` }, trail.state), h("code", {}, trail.event_id), h("span", { class: "muted folded-said" }, trail.said)),
      body,
    );
  }));
}

function absent(missing) {
  return h(
    "div", { class: "absent-card" },
    h("h2", {}, icon("info"), missing.length === 1 ? "Not found" : `${many(missing.length, "id")} not found`),
    h("ul", { class: "missing" }, missing.slice(0, 100).map((one) => h("li", {}, h("code", {}, one.id), one.nearest.map((words) => h("p", {}, words))))),
    missing.length > 100 && h("p", { class: "muted" }, `and ${count(missing.length - 100)} more`),
  );
}

function searched(answer) {
  return h("div", { class: "searched muted" }, answer.searched_said.map((words) => h("p", {}, words)));
}

/** Return the class that colours a state. */
export function kind(state) {
  return String(state).replaceAll(" ", "-");
}
