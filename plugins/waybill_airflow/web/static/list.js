// The list of partitions: totals, sortable table, pages by cursor. A page costs the server the same
// however deep it lies, and at half a million partitions only one page is ever in the browser.

import { hashOf, read, write } from "./address.js";
import { showCampaigns } from "./campaigns.js";
import { ask, offers, taken, takes } from "./client.js";
import { fill, h, icon, redraw, refill } from "./dom.js";
import { filterBar, narrows, queryOf } from "./filters.js";
import { named } from "./names.js";
import { problem } from "./notices.js";
import { Pager } from "./pager.js";
import { summary } from "./permissions.js";
import { sparkline } from "./sparkline.js";
import { ago, count, many, size, time } from "./words.js";

const WEEK_MS = 7 * 86_400_000;
const PAGE_SIZES = ["25", "50", "100", "200"];

/** Show the list for the address's view; `world` has me, names and catalogue. */
export class List {
  constructor(page, world) {
    this.page = page;
    this.world = world;
    this.view = read();
    this.asked = null;
  }

  /** Draw everything anew and ask for the page. */
  show() {
    this.view = read();
    this.totals = h("div", { class: "totals", "aria-live": "polite" });
    this.bar = h("div", {});
    this.table = h("div", { class: "table-frame" });
    this.sizes = h("select", { name: "limit", onchange: (event) => this.change({ limit: event.target.value, after: "" }) });
    this.pager = new Pager((after) => this.turn(after), h("label", { class: "muted page-size" }, "Rows ", this.sizes));
    const campaigns = h("div", { class: "campaigns" });
    fill(this.page, this.head(), campaigns, this.bar, this.table, this.pager.element);
    showCampaigns(campaigns, this.world.me);
    this.drawBar();
    fill(this.table, waiting());
    return this.load();
  }

  head() {
    const may = summary(this.world.me);
    return h(
      "header",
      { class: "head" },
      h("div", {}, h("h1", {}, "Parked events"),
        h("p", { class: "muted" }, "Events that could not go on, kept until somebody fixes the cause and replays them, or discards them.", may && h("span", { class: "may" }, ` ${may}`))),
      this.totals,
    );
  }

  drawBar() {
    const focused = document.activeElement?.name;
    fill(this.bar, filterBar(this.view, this.world, (part) => this.change(part)));
    if (focused) this.bar.querySelector(`[name="${focused}"]`)?.focus();
  }

  change(part) {
    const next = { ...this.view, ...part };
    if (hashOf(next) === hashOf(this.view)) return;
    if (!("after" in part) || part.after === "") this.pager.forget();
    const typing = document.activeElement?.type === "text" && this.bar.contains(document.activeElement);
    this.view = next;
    write(next);
    if (typing) this.bar.querySelector(".clear").hidden = !narrows(next); // the field stays as it is
    else this.drawBar();
    this.load();
  }

  /** Ask for the page of the view; an answer that a later question made stale is dropped. */
  async load() {
    this.asked?.abort();
    const asked = new AbortController();
    this.asked = asked;
    this.table.setAttribute("aria-busy", "true");
    const { sort, descending, limit, after } = this.view;
    const query = taken("GET", "/partitions", { ...queryOf(this.view), sort, descending, limit, after });
    try {
      const found = await ask("/partitions", { query, signal: asked.signal });
      if (asked !== this.asked) return;
      this.draw(found);
      await this.drawTimelines(found.partitions, asked);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.table, problem(error, () => this.load()));
    } finally {
      if (asked === this.asked) this.table.removeAttribute("aria-busy");
    }
  }

  draw(found) {
    this.drawTotals(found.total);
    const rows = found.partitions;
    redraw(this.table, () => fill(this.table, rows.length ? this.drawTable(rows) : this.empty()));
    this.drawPager(found);
  }

  drawTotals(total) {
    redraw(this.totals, () => refill(
      this.totals,
      tile(count(total.partitions), total.partitions === 1 ? "group" : "groups"),
      tile(count(total.parked), total.parked === 1 ? "parked event" : "parked events"),
      tile(size(total.bytes), "held"),
      h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: () => this.load() }, icon("refresh")),
    ));
  }

  drawTable(rows) {
    const head = h(
      "tr", {},
      this.sorter("name", "Pipeline"), h("th", { scope: "col" }, "Event name"), h("th", { scope: "col" }, "Error"),
      this.sorter("parked", "Parked", "number"), this.sorter("bytes", "Size", "number"),
      h("th", { scope: "col" }, "First parked"), this.sorter("last_parked_at", "Last parked"),
      offers("GET", "/timelines") && h("th", { scope: "col" }, this.byParkedTime() ? "In the window" : "Last 7 days"),
    );
    return h(
      "table", { class: "partitions" },
      h("caption", { class: "sr-only" }, "Parked groups"),
      h("thead", {}, head),
      h("tbody", {}, rows.map((row) => this.row(row))),
    );
  }

  sorter(key, text, className = "") {
    if (!takes("GET", "/partitions", "sort")) return h("th", { scope: "col", class: className }, text);
    const active = this.view.sort === key;
    const down = this.view.descending === "true";
    const sorted = active ? (down ? "descending" : "ascending") : null;
    const turn = () => this.change({ sort: key, descending: String(active ? !down : key !== "name"), after: "" });
    return h(
      "th", { scope: "col", class: className, "aria-sort": sorted },
      h("button", { type: "button", class: "sorter", onclick: turn }, text, h("span", { class: "arrow", "aria-hidden": "true" }, active ? (down ? "↓" : "↑") : "↕")),
    );
  }

  row(row) {
    const view = { ...this.view, id: String(row.id) };
    const href = hashOf(view);
    const open = (event) => {
      if (event.target.closest("a, button") || String(getSelection())) return;
      location.hash = href;
    };
    return h(
      "tr", { onclick: open, "data-id": row.id },
      h("td", { class: "name" }, h("a", { href }, row.pipeline || "(no name)"), h("span", { class: "sub" }, row.team || "no team")),
      h("td", { class: "name", "data-label": "Event" }, named(row.event_name)),
      h("td", { class: "error" }, h("span", { class: "title" }, this.title(row)), h("span", { class: "sub" }, h("span", { class: `stage ${stageClass(row.stage)}` }, row.stage), h("code", {}, row.error_type))),
      h("td", { class: "number", "data-label": "Parked" }, h("strong", {}, count(row.parked)), row.replaying > 0 && h("span", { class: "sub" }, `${count(row.replaying)} replaying`)),
      h("td", { class: "number", "data-label": "Size" }, size(row.bytes)),
      moment(row.first_parked_at, "First"), moment(row.last_parked_at, "Last"),
      offers("GET", "/timelines") && h("td", { class: "spark" }),
    );
  }

  title(row) {
    return this.world.titles.get(row.error_type)?.title ?? row.error_type;
  }

  async drawTimelines(rows, asked) {
    if (!rows.length || !offers("GET", "/timelines")) return;
    const week = new Date(Date.now() - WEEK_MS).toISOString();
    const window = this.byParkedTime() ? { since: this.view.since || week, until: this.view.until } : { since: week };
    const found = await ask("/timelines", { query: { ids: rows.map((row) => row.id).join(","), ...window }, signal: asked.signal });
    for (const line of this.table.querySelectorAll("tr[data-id]")) {
      const timeline = found[line.dataset.id];
      if (timeline) fill(line.querySelector(".spark"), sparkline(timeline));
    }
  }

  byParkedTime() {
    return this.view.clock === "parked" && (this.view.since || this.view.until) !== "";
  }

  empty() {
    const filtered = narrows(this.view);
    const words = filtered
      ? "No group matches these filters."
      : this.view.held === "true" ? "Nothing is parked now: every event went on, or was replayed or discarded." : "Nothing was ever parked.";
    const more = filtered ? "Widen the window or clear a filter." : "What cannot go on will appear here, with its reason.";
    return h("div", { class: "empty" }, icon(filtered ? "info" : "check"), h("p", {}, words), h("p", { class: "muted" }, more));
  }

  drawPager(found) {
    const { after, limit } = this.view;
    const rows = found.partitions.length;
    const pages = this.pager.pagesBefore(after);
    const start = (pages ?? 0) * Number(limit);
    const words = pages === null ? `${many(rows, "group")} of ${count(found.total.partitions)}` : `${count(start + 1)} to ${count(start + rows)} of ${many(found.total.partitions, "group")}`;
    fill(this.sizes, PAGE_SIZES.map((one) => h("option", { value: one, selected: one === limit }, one)));
    this.pager.draw({ words: rows ? words : "", after, next: found.next });
  }

  turn(after) {
    this.view = { ...this.view, after };
    write(this.view);
    this.load().then(() => this.page.scrollIntoView({ block: "start" }));
  }
}

function tile(number, words) {
  return h("div", { class: "tile" }, h("strong", {}, number), h("span", {}, words));
}

function moment(text, label) {
  return h("td", { class: "time", "data-label": label, title: `${time(text)} UTC` }, h("span", {}, ago(text)), h("span", { class: "sub" }, time(text, { seconds: false })));
}

/** Return the class that colours a stage's name. */
export function stageClass(stage) {
  return ["ingestion", "transformation", "mapping", "destination"].includes(stage) ? stage : "other";
}

/** Return what is shown until the first answer is in. */
export function waiting() {
  return h("div", { class: "skeleton", "aria-label": "Loading" }, Array.from({ length: 6 }, () => h("span", {})));
}
