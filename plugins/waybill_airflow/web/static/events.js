// The events of a partition: groups by fingerprint, and one event's payload beside its errors.

import { ask, offers, taken, takes } from "./client.js";
import { fill, h, icon, redraw } from "./dom.js";
import { fieldOf, find, jsonView, textView } from "./json_view.js";
import { problem } from "./notices.js";
import { ago, count, many, percent, size, time } from "./words.js";

const PAGE = 20;
const EVENTS = "/partitions/{}/events";

/** The lower half of a partition's view. `onchoose` gets the fingerprint that was chosen, or "". */
export class Events {
  constructor(partition, fingerprint, onchoose) {
    this.partition = partition;
    this.fingerprint = fingerprint;
    this.onchoose = onchoose;
    this.groups = h("div", { class: "groups", role: "group", "aria-label": "Kinds of error" });
    this.rows = h("ol", { class: "event-list", "aria-label": "Events" });
    this.damage = h("div", {});
    this.damaged = [];
    this.more = h("div", {});
    this.viewer = h("div", { class: "viewer", "aria-live": "polite" });
    this.element = h(
      "section", { class: "events", "aria-label": "Events" },
      h("div", { class: "events-side" }, this.groups, h("h2", {}, "Sample of events"), this.damage, this.rows, this.more),
      this.viewer,
    );
    this.events = [];
  }

  /** Take new numbers of the partition. */
  update(partition) {
    this.partition = partition;
    this.drawGroups();
  }

  /** Draw, and ask for the first events. */
  show() {
    this.drawGroups();
    return this.load();
  }

  drawGroups() {
    const groups = takes("GET", EVENTS, "fingerprint") ? this.partition.fingerprints ?? [] : [];
    const all = groups.reduce((sum, group) => sum + group.events, 0);
    const rows = groups.map((group) => this.group(group, all));
    const every = groups.length > 1 && this.choice("", ["All kinds of error"], all, all);
    redraw(this.groups, () => fill(this.groups, h("h2", {}, groups.length === 1 ? "One kind of error" : `${count(groups.length)} kinds of error`), every, rows));
    this.groups.hidden = groups.length === 0;
  }

  group(group, all) {
    const words = [
      h("span", { class: "group-message" }, group.message || "(no message)"),
      h("span", { class: "sub" }, `last ${ago(group.last_parked_at)}`, h("code", {}, String(group.fingerprint).slice(0, 8))),
    ];
    return this.choice(group.fingerprint, words, group.events, all);
  }

  choice(fingerprint, words, events, all) {
    const pressed = fingerprint === this.fingerprint;
    return h(
      "button", { type: "button", class: "group", "aria-pressed": String(pressed), onclick: () => this.choose(fingerprint) },
      h("span", { class: "group-words" }, words),
      h("span", { class: "group-count" }, h("strong", {}, count(events)), h("span", { class: "sub" }, percent(events, all))),
      h("span", { class: "share", vars: { "--share": all ? events / all : 0 } }),
    );
  }

  choose(fingerprint) {
    this.fingerprint = fingerprint === this.fingerprint ? "" : fingerprint;
    this.onchoose(this.fingerprint);
    this.drawGroups();
    return this.load();
  }

  async load(after = "") {
    const asked = { fingerprint: this.fingerprint };
    this.asked = asked;
    if (!after) fill(this.more, h("p", { class: "muted" }, "Reading events…"));
    try {
      const query = taken("GET", EVENTS, { limit: PAGE, fingerprint: this.fingerprint, after });
      const found = await ask(`/partitions/${this.partition.id}/events`, { query, exact: true });
      if (asked !== this.asked) return;
      this.take(found, after);
    } catch (error) {
      if (asked === this.asked) fill(this.more, problem(error, () => this.load(after)));
    }
  }

  take(found, after) {
    this.events = after ? [...this.events, ...found.events] : found.events;
    this.damaged = after ? [...this.damaged, ...(found.damaged ?? [])] : found.damaged ?? [];
    fill(this.damage, damageNote(this.damaged));
    const from = this.events.length - found.events.length;
    const rows = found.events.map((event, index) => this.row(event, from + index));
    if (after) this.rows.append(...rows);
    else fill(this.rows, rows);
    const next = found.next && h("button", { type: "button", class: "button wide", onclick: () => this.load(found.next) }, "Show more events");
    fill(this.more, next);
    if (!after) this.open(0);
    if (!this.events.length) fill(this.viewer, this.damaged.length ? null : nothing(this.partition));
  }

  row(event, index) {
    const show = () => this.open(index);
    return h(
      "li", {},
      h("button", { type: "button", class: "event-row", onclick: show, "aria-current": "false" },
        h("code", { class: "event-id" }, event.event_id || "(no id)"),
        h("span", { class: "sub" }, time(event.event_at), event.attempt > 0 && ` · attempt ${count(event.attempt)}`)),
    );
  }

  open(index) {
    const event = this.events[index];
    if (!event) return;
    for (const [at, button] of [...this.rows.querySelectorAll(".event-row")].entries()) {
      button.setAttribute("aria-current", String(at === index));
    }
    fill(this.viewer, this.card(event));
  }

  card(event) {
    const field = fieldOf(event.where);
    const hasJson = event.text === null || event.text === undefined;
    const path = hasJson ? find(event.payload, field) : null;
    const view = hasJson ? jsonView(event.payload, path, event.masked ?? []) : textView(event.text);
    return h(
      "article", { class: "event-card", "aria-label": `Event ${event.event_id || "(no id)"}` },
      h("div", { class: "event-error" }, errors(event), hasJson && absent(field, path), facts(event)),
      h("div", { class: "event-payload" }, h("h3", {}, hasJson ? "Payload" : "Payload, as text"), cutNote(event), maskedNote(event), view, envelope(event)),
    );
  }
}

function errors(event) {
  const listed = event.errors?.length ? event.errors : [event];
  const title = listed.length > 1 ? `All ${count(listed.length)} errors` : "Error";
  const rows = listed.map((one) =>
    typeof one === "string"
      ? h("li", {}, h("p", { class: "message" }, one))
      : h("li", {}, h("code", { class: "code" }, [one.stage, one.error_type ?? one.type].filter(Boolean).join(" / ")), h("p", { class: "message" }, one.message || "(no message)"), one.where && h("p", { class: "where" }, "at ", h("code", {}, one.where))),
  );
  return [h("h3", {}, title), h("ul", { class: "errors" }, rows)];
}

function absent(field, path) {
  return field && !path && h("p", { class: "absent" }, icon("info"), h("span", {}, "The payload has no field ", h("code", {}, field), "."));
}

function facts(event) {
  const place = event.topic ? `${event.topic} [${event.kafka_partition}] @ ${event.kafka_offset}` : "never was in Kafka";
  const rows = [
    ["Event id", event.event_id && trailLink(event.event_id)], ["Event time", `${time(event.event_at)} UTC`], ["Parked", `${time(event.parked_at)} UTC`],
    ["Attempt", event.attempt > 0 ? count(event.attempt) : "0 (no replay sent it yet)"], ["Pipeline version", event.pipeline_version], ["Kafka", place], ["Fingerprint", event.fingerprint],
  ].filter(([, value]) => value);
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function trailLink(id) {
  return h("a", { href: `trails#${new URLSearchParams({ id })}`, title: "Where it was, and is" }, id);
}

function maskedNote(event) {
  const fields = event.masked ?? [];
  if (!fields.length) return null;
  const named = fields.filter((one) => one !== "*");
  const whole = fields.includes("*") && "This event cannot be taken apart, or its payload is elsewhere: what may be personal in it is masked whole.";
  const words = [whole, named.length > 0 && `${many(named.length, "field")} of personal data masked: ${named.join(", ")}.`].filter(Boolean).join(" ");
  return h("p", { class: "masked-note" }, icon("info"), h("span", {}, words));
}

function cutNote(event) {
  return event.cut && h("p", { class: "masked-note" }, icon("info"), h("span", {}, `${size(event.bytes)}: too large for a screen. This is its beginning; download it to see all.`));
}

function damageNote(damaged) {
  if (!damaged.length) return null;
  const all = damaged.reduce((sum, one) => sum + one.events, 0);
  const rows = damaged.map((one) => h("li", {}, `${many(one.events, "event")} of `, h("code", {}, one.object_key), `: ${one.reason}`));
  return h("div", { class: "callout warning damage", role: "status" }, icon("info"), h("div", {}, h("p", {}, `${many(all, "event")} could not be read.`), h("ul", {}, rows)));
}

function envelope(event) {
  return event.envelope && h("details", { class: "envelope" }, h("summary", {}, "Envelope"), jsonView(event.envelope, null));
}

function nothing(partition) {
  const words = partition.parked ? "No waiting event matches." : "No event waits here any more.";
  return h("div", { class: "empty small" }, icon("check"), h("p", {}, words));
}

/** Tell whether events can be looked at. */
export function canShowEvents() {
  return offers("GET", EVENTS);
}
