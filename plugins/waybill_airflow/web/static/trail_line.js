// A trail as a line: its stops with times, durations and places; each replay is a branch of its own.

import { openInAirflow } from "./address.js";
import { h, icon } from "./dom.js";
import { count, many, plain, time } from "./words.js";

const ICONS = { delivered: "check", parked: "hold", replaying: "replay", quarantined: "alert", discarded: "trash", "in flight": "clock", split: "next", unknown: "info" };
const LATE = "~ a late mark: it was written after what it caused (a replay's is, once Kafka has the event), or by a clock that is ahead; shown is the time by which it had happened.";
const PARKED_PAGE = "plugin/waybill-parked/waybill/parked";

/** Return one trail. */
export function drawTrail(trail, small = false) {
  return h(
    "article", { class: `trail ${kind(trail.state)}${small ? " child" : ""}`, "data-event": trail.event_id },
    h(
      "header", {},
      h("div", { class: "who" }, h("h2", { class: "mono" }, trail.event_id), h("p", { class: "muted" }, source(trail))),
      h("p", { class: "verdict" }, icon(ICONS[trail.state] ?? "info"), h("span", {}, sentence(trail.said))),
    ),
    copies(trail).map((stops) => way(stops, trail)),
    notes(trail),
    trail.children.length > 0 && h("section", { class: "children", "aria-label": "What was made of it" }, trail.children.map((child) => drawTrail(child, true))),
  );
}

function source(trail) {
  const where = [trail.pipeline || trail.pipeline_id, trail.event_name || "(empty)"].join(" / ");
  return trail.team ? `${where}, team ${trail.team}` : where;
}

function sentence(words) {
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;
}

/** Stops by what `of` returns of each, in their order. */
function grouped(stops, of) {
  const found = new Map();
  for (const stop of stops) found.set(of(stop), [...(found.get(of(stop)) ?? []), stop]);
  return [...found.values()];
}

function copies(trail) {
  return grouped(trail.stops, (stop) => stop.copy_number ?? 0);
}

/** The way of an event, or of one of its copies. */
function way(stops, trail) {
  const drawn = grouped(stops, (stop) => stop.leg).map((own, index) => leg(own, index, trail));
  if (!trail.stops.some((stop) => stop.copy_number > 0)) return drawn;
  const number = stops[0].copy_number;
  const title = number > 0 ? `Copy ${count(number)}` : "Copy not known: a trace is missing, or not here yet";
  const verdict = (trail.copies ?? []).find((one) => one.copy_number === number);
  return h(
    "div", { class: `copy-way ${kind(verdict?.state ?? "unknown")}`, role: "group", "aria-label": title },
    h("h3", {}, title, verdict && h("span", { class: "muted" }, sentence(verdict.said))),
    drawn,
  );
}

function leg(stops, index, trail) {
  const [first] = stops;
  return h(
    "section", { class: `leg${first.leg ? " branch" : ""}`, "data-leg": first.leg, "aria-label": first.leg ? `Replay ${first.leg}` : "First way" },
    first.leg > 0 && h("h3", {}, icon("replay"), `Replay ${first.leg}`, by(first)),
    h("ol", { class: "stops" }, stops.map((stop, at) => line(stop, at === 0 && index === 0, trail, Boolean(stop.coarse || stops[at - 1]?.coarse)))),
  );
}

function by(stop) {
  const row = stop.replay;
  const who = row?.requested_by.includes("/") ? row.requested_by : `${row?.requested_by} in Airflow`;
  return row ? h("span", { class: "muted" }, ` by ${who}`) : null;
}

function line(stop, isFirst, trail, isCoarse) {
  const clock = iso(stop.shown_at ?? stop.at);
  const written = iso(stop.at);
  const day = written.slice(0, 10) === clock.slice(0, 10) ? "" : `${written.slice(0, 10)} `;
  return h(
    "li", { class: `stop ${kind(stop.outcome)}` },
    stop.after_s !== null && !isFirst && h("span", { class: "after", title: `${isCoarse ? "About " : ""}${stop.after_s} s after the stop before` }, span(stop.after_s, isCoarse)),
    h("span", { class: "dot", "aria-hidden": "true" }),
    h("div", { class: "stop-time" }, h("strong", {}, clock.slice(11, stop.coarse ? 21 : 23), stop.late && h("span", { class: "late", title: LATE }, "~")), h("span", { class: "muted" }, clock.slice(0, 10))),
    h(
      "div", { class: "stop-body" },
      h("p", { class: "what" }, h("strong", {}, stop.phase), h("span", { class: `verdict-chip ${kind(stop.outcome)}` }, stop.outcome), stop.copies?.length > 1 && h("span", { class: "muted copy" }, `copies ${stop.copies.slice(0, 5).map(count).join(", ")}${stop.copies.length > 5 ? ", …" : ""} together`), stop.error_type && h("code", {}, stop.error_type)),
      places(stop),
      stop.late && h("p", { class: "places" }, h("span", {}, `mark written at ${day}${written.slice(11, 23)}`)),
      decision(stop),
      parkedNow(stop),
      links(stop, trail),
    ),
  );
}

/** UTC, to the ms; what is no time stays as it is. */
function iso(text) {
  const instant = new Date(text);
  return Number.isNaN(instant.getTime()) ? String(text) : instant.toISOString();
}

function decision(stop) {
  const made = stop.decision;
  return made ? h("p", { class: "decision" }, `by ${made.who}${made.why ? `: ${made.why}` : ""}`) : null;
}

function places(stop) {
  const found = [...String(stop.place).split("  "), stop.host && `host ${stop.host}`, batchWords(stop)].filter(Boolean);
  return found.length > 0 && h("p", { class: "places" }, found.map((one) => h("span", {}, one)));
}

function batchWords(stop) {
  const row = stop.batch_row;
  return row ? `commit ${count(row.commit_number)} of ${row.destination}` : "";
}

function parkedNow(stop) {
  const now = stop.parked;
  if (!now) return null;
  const who = now.by ? ` by ${now.by}` : "";
  const when = now.at && now.state !== "parked" && now.state !== "copy" ? `, since ${time(now.at)} UTC` : "";
  return h("p", { class: "now" }, h("strong", {}, "Now: "), `${now.state}${who}${when}${now.why ? `: ${now.why}` : ""}`);
}

function links(stop, trail) {
  const found = [];
  if (stop.parked) found.push(["Parked group", `${PARKED_PAGE}#id=${stop.parked.partition_id}`]);
  if (stop.replay?.run_id && (stop.phase === "replay" || stop.parked)) found.push(["Replay's run", `dags/replay/runs/${encodeURIComponent(stop.replay.run_id)}`]);
  if (stop.phase === "ingestion" && trail.pipeline) found.push(["Ingestion's runs", `dags/${encodeURIComponent(`ingest_${trail.pipeline}`)}/runs`]);
  return found.length > 0 && h("p", { class: "links" }, found.map(([words, path]) => h("button", { type: "button", class: "link", "data-path": path, onclick: () => openInAirflow(path) }, words, icon("open"))));
}

function notes(trail) {
  const found = [
    trail.stops.some((stop) => stop.late) && LATE,
    trail.stops.some((stop) => stop.copy_number > 0) && "It was taken in more than once: each copy has a way of its own.",
    trail.left_out > 0 && `${many(trail.left_out, "stop")} left out, as there are too many.`,
    trail.uncommitted > 0 && `${many(trail.uncommitted, "trace")} of batches that did not commit left out.`,
    trail.more > 0 && `${many(trail.more, "more event")} made of it.`,
  ].filter(Boolean);
  return found.length > 0 && h("div", { class: "trail-notes muted" }, found.map((words) => h("p", {}, words)));
}

function kind(state) {
  return plain(state).replaceAll(" ", "-");
}

/** Seconds → "42 ms", "1.25 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"; known to a tenth only: "1.2 s". */
export function span(seconds, isCoarse = false) {
  if (isCoarse && seconds < 10) return seconds < 0.1 ? "<0.1 s" : `${seconds.toFixed(1)} s`;
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${seconds.toFixed(1)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}
