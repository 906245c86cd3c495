// Breaches in words: what is wrong, where, since when, of which events; and the dialog that closes one.

import { ask, change } from "./client.js";
import { openForm, textField } from "./dialogs.js";
import { fill, h, icon } from "./dom.js";
import { notice, problem } from "./notices.js";
import { mayFor } from "./permissions.js";
import { ago, count, time } from "./words.js";

const TITLES = {
  on_the_way: ["Lost on the way", "Doubled on the way"], in_stage: ["Lost inside a stage", "Doubled inside a stage"],
  ids: ["Events differ where numbers agree"], parked: ["Parked files and counts differ"], replays: ["A replay does not add up"],
  offsets: ["Offsets with a gap or an overlap"], source_count: ["The source counted other events"],
  quiet: ["Gone quiet"], late: ["Late"], parked_jump: ["More parks than usual"], drift: ["Rows are missing in the table", "Rows too many in the table"],
  stranded: ["Events on a node that is gone"], draining: ["The old generation of its topic does not end"],
  slot: ["Its source keeps too much for it"],
};
const ENDED = { explained: "over by itself", closed: "closed by name" };
const MOST_ENDED = 20;
const MOST_SHOWN = 3;

/** The open breaches, and below them those that ended; `world` has me and teams: id → team. */
export class Breaches {
  constructor(world, onclosed) {
    this.world = world;
    this.onclosed = onclosed;
    this.pipeline = "";
    this.all = false;
    this.open = h("div", { class: "breaches" });
    this.ended = h("div", { class: "breaches" });
    this.more = h("details", { class: "ended", ontoggle: () => this.more.open && this.loadEnded() }, h("summary", {}, "Breaches that ended"), this.ended);
    this.element = h("section", { "aria-label": "Breaches", class: "breach-section" }, this.open, this.more);
  }

  /** Ask for those of a pipeline, or of all; returns how many are open. */
  async load(pipeline, signal) {
    this.pipeline = pipeline;
    const { breaches } = await ask("/breaches", { query: { state: "open", pipeline, limit: 200 }, signal });
    this.draw(breaches);
    if (this.more.open) await this.loadEnded();
    return breaches.length;
  }

  draw(breaches) {
    const focused = document.activeElement?.dataset?.breach;
    const shown = this.all ? breaches : breaches.slice(0, MOST_SHOWN);
    const rest = breaches.length - shown.length;
    const showAll = () => { this.all = true; this.draw(breaches); };
    fill(this.open, shown.map((one) => this.card(one)), rest > 0 && h("button", { type: "button", class: "button", onclick: showAll }, `Show ${count(rest)} more open`));
    if (focused) this.open.querySelector(`[data-breach="${focused}"]`)?.focus();
  }

  async loadEnded() {
    try {
      const query = { pipeline: this.pipeline, limit: MOST_ENDED };
      const found = await Promise.all(["explained", "closed"].map((state) => ask("/breaches", { query: { ...query, state } })));
      const rows = found.flatMap((one) => one.breaches).sort((a, b) => b.ended_at.localeCompare(a.ended_at)).slice(0, MOST_ENDED);
      fill(this.ended, rows.length ? rows.map((one) => this.card(one)) : h("p", { class: "muted" }, "None has ended yet."));
    } catch (error) {
      fill(this.ended, problem(error, () => this.loadEnded()));
    }
  }

  card(one) {
    const open = one.state === "open";
    return h(
      "article", { class: open ? "finding" : "finding over", "data-id": one.id, "aria-label": title(one) },
      icon(open ? "alert" : "check"),
      h("div", { class: "breach-body" },
        h("h2", {}, title(one)), h("p", { class: "breach-words" }, one.words), h("p", { class: "breach-place" }, place(one)),
        events("missing", one.missing, one.missing_events), events("doubled", one.doubled, one.doubled_events), trailsOf(one),
        !open && h("p", { class: "muted" }, `${ENDED[one.state]} ${ago(one.ended_at)}${one.state === "closed" ? ` (${one.ended_by})` : ""}: ${one.reason}`)),
      open && this.closer(one),
    );
  }

  closer(one) {
    const team = this.world.teams.get(one.pipeline_id) ?? "";
    const may = mayFor(this.world.me, "discard", team);
    const why = `Closing a breach of team ${team || "(none)"} takes the permission “discard” for it.`;
    return h("span", { class: "with-why" },
      h("button", { type: "button", class: "button", "data-breach": one.id, "aria-disabled": may ? null : "true", "aria-describedby": may ? null : `why-${one.id}`, onclick: may ? () => this.close(one) : null }, "Close…"),
      !may && h("span", { class: "why", role: "tooltip", id: `why-${one.id}` }, why));
  }

  async close(one) {
    const closed = await openForm({
      title: `Close: ${title(one).toLowerCase()}`,
      intro: [one.words, one.kind === "drift" ? "From now on the table's rows count as right as they are." : "It is not told again while it stays as it is; another one is."],
      fields: [textField("why", "Why is it none?", { note: "Your name and this reason go into the audit log." })],
      action: "Close breach",
      send: ({ why }) => change("POST", `/breaches/${one.id}/close`, { why }),
    });
    if (!closed) return;
    notice(`Breach ${one.id} is closed.`);
    await this.onclosed();
  }
}

function title(one) {
  const [missing, doubled] = TITLES[one.kind] ?? [one.kind.replaceAll("_", " ")];
  return one.gap < 0 && doubled ? doubled : missing;
}

function place(one) {
  const minute = one.minute ? `taken in at ${time(new Date(one.minute * 60_000).toISOString(), { seconds: false })} UTC` : "";
  const parts = [one.pipeline, one.event_name, one.stage, minute].filter(Boolean);
  return [h("span", {}, parts.join(" · ")), h("span", { class: "muted", title: `${time(one.first_seen_at)} UTC` }, ` seen ${ago(one.first_seen_at)}`)];
}

function trailsOf(one) {
  const number = one.missing_events + one.doubled_events;
  return number > 1 && h("p", {}, h("a", { href: `trails#breach=${one.id}` }, `Where are these ${count(number)} events?`));
}

function events(what, ids, number) {
  if (!number) return null;
  const rest = number - ids.length;
  return h("div", { class: "breach-ids" }, h("span", { class: "label" }, `${count(number)} ${what}`),
    h("ul", {}, ids.map((id) => h("li", {}, h("a", { href: `trails#id=${encodeURIComponent(id)}` }, h("code", {}, id)))), rest > 0 && h("li", { class: "muted" }, `and ${count(rest)} more`)));
}
