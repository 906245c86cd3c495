// Breaches in words: what is wrong, where, since when, of which events; and the dialog that closes one.

import { ask, change } from "./client.js";
import { openForm, textField } from "./dialogs.js";
import { fill, h, icon, redraw } from "./dom.js";
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
const OF_PARKED = ["parked", "parked_jump"];
const MOST_ENDED = 20;
const MOST_SHOWN = 3;
const PAGE = 200;

/** The open breaches, and below them those that ended; `world` has me. */
export class Breaches {
  constructor(world, onchange) {
    this.world = world;
    this.onchange = onchange;
    this.pipeline = "";
    this.wanted = MOST_SHOWN;
    this.open = h("div", { class: "breaches" });
    this.ended = h("div", { class: "breaches" });
    this.more = h("details", { class: "ended", ontoggle: () => this.more.open && this.loadEnded() }, h("summary", {}, "Breaches that ended"), this.ended);
    this.element = h("section", { "aria-label": "Breaches", class: "breach-section" }, this.open, this.more);
  }

  /** Ask for those of a pipeline, or of all, as many as are shown; returns how many are open. */
  async load(pipeline, signal) {
    if (pipeline !== this.pipeline) this.wanted = MOST_SHOWN;
    this.pipeline = pipeline;
    const found = [];
    let page = { next: null };
    do {
      page = await ask("/breaches", { query: { state: "open", pipeline, limit: Math.min(PAGE, this.wanted - found.length), after: page.next }, signal });
      found.push(...page.breaches);
    } while (page.next && found.length < this.wanted);
    this.draw(found, page.total);
    if (this.more.open) await this.loadEnded();
    return page.total;
  }

  draw(breaches, total) {
    const rest = total - breaches.length;
    const some = Math.min(rest, PAGE);
    const first = breaches.length;
    const more = async () => {
      this.wanted = first + some;
      await this.onchange();
      this.open.children[first]?.querySelector("a, button")?.focus({ preventScroll: true });
    };
    redraw(this.open, () => fill(this.open, breaches.map((one) => this.card(one)),
      rest > 0 && h("button", { type: "button", class: "button", onclick: more }, some < rest ? `Show ${count(some)} more of ${count(total)} open` : `Show ${count(rest)} more open`)));
  }

  async loadEnded() {
    try {
      const query = { pipeline: this.pipeline, limit: MOST_ENDED };
      const found = await Promise.all(["explained", "closed"].map((state) => ask("/breaches", { query: { ...query, state } })));
      const rows = found.flatMap((one) => one.breaches).sort((a, b) => b.ended_at.localeCompare(a.ended_at)).slice(0, MOST_ENDED);
      const total = found.reduce((sum, one) => sum + one.total, 0);
      redraw(this.ended, () => fill(this.ended, rows.length ? rows.map((one) => this.card(one)) : h("p", { class: "muted" }, "None has ended yet."),
        total > rows.length && h("p", { class: "muted" }, `The newest ${count(rows.length)} of ${count(total)}.`)));
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
        events("missing", one.missing, one.missing_events), events("doubled", one.doubled, one.doubled_events), trailsOf(one), parkedOf(one),
        !open && h("p", { class: "muted" }, `${ENDED[one.state]} ${ago(one.ended_at)}${one.state === "closed" ? ` (${one.ended_by})` : ""}: ${one.reason}`)),
      open && this.closer(one),
    );
  }

  closer(one) {
    const { team } = one;
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
    await this.onchange();
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

/** Of one about parked events: where these are. */
function parkedOf(one) {
  const group = Object.entries({ pipeline: one.pipeline_id, event_name: one.event_name, stage: one.stage }).filter(([, value]) => value);
  return OF_PARKED.includes(one.kind) && h("p", {}, h("a", { href: `parked#${new URLSearchParams(group)}` }, "Its parked events"));
}

function events(what, ids, number) {
  if (!number) return null;
  const rest = number - ids.length;
  return h("div", { class: "breach-ids" }, h("span", { class: "label" }, `${count(number)} ${what}`),
    h("ul", {}, ids.map((id) => h("li", {}, h("a", { href: `trails#id=${encodeURIComponent(id)}` }, h("code", {}, id)))), rest > 0 && h("li", { class: "muted" }, `and ${count(rest)} more`)));
}
