// The heat map: a grid of cells that the arrow keys walk through, and a card with a cell's numbers.

import { fill, h } from "./dom.js";
import { cellWords, equations, eventsOf, verdictWords } from "./equations.js";
import { count } from "./words.js";

const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
const TICKS = [[60, 10], [300, 60], [900, 180], [7200, 1440]]; // length of a column in s: minutes between ticks
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Milliseconds → "14:05", in UTC; with its day where a column is longer than a quarter of an hour. */
function at(ms, long) {
  const text = new Date(ms).toISOString();
  return long ? `${text.slice(5, 10)} ${text.slice(11, 16)}` : text.slice(11, 16);
}

/** Draws rows {key, label: Node, name, cells} over the columns of `grid`, an answer of the API. */
export class Heat {
  constructor() {
    this.card = h("div", { class: "cell-card", role: "status", hidden: true });
    this.frame = h("div", { class: "heat-frame" });
    this.element = h("div", { class: "heat" }, this.frame, this.card);
    this.focused = { row: 0, place: -1 };
    this.frame.addEventListener("pointerover", (event) => this.point(event));
    this.frame.addEventListener("pointerleave", () => this.hide());
    this.frame.addEventListener("focusin", (event) => this.focus(event.target));
    this.frame.addEventListener("focusout", () => this.hide());
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("scroll", () => this.scrolled());
  }

  /** Draw; keeps where the keyboard and the eye were. */
  draw(grid, rows, what) {
    const first = !this.grid || this.grid.columns !== grid.columns;
    const kept = this.frame.contains(document.activeElement) && document.activeElement.matches("td[data-place]");
    const scrolled = this.frame.scrollLeft;
    this.grid = grid;
    this.rows = rows.map((row) => ({ ...row, byPlace: new Map(row.cells.map((cell) => [cell.place, cell])) }));
    this.since = Date.parse(grid.since);
    if (first || this.focused.place < 0) this.focused = { row: 0, place: grid.columns - 1 };
    this.focused.row = Math.min(this.focused.row, rows.length - 1);
    const most = Math.max(1, ...rows.flatMap((row) => row.cells.map(eventsOf)));
    fill(this.frame, h("table", { class: "cells", role: "grid", "aria-label": `Balance of ${what}`, "aria-rowcount": rows.length + 1, "aria-colcount": grid.columns + 1 },
      h("thead", {}, this.ticks(what)), h("tbody", {}, this.rows.map((row, index) => this.row(row, index, most)))));
    this.frame.scrollLeft = first ? this.frame.scrollWidth : scrolled;
    if (kept) this.at(this.focused).focus({ preventScroll: true });
  }

  ticks(what) {
    const [, every] = TICKS.find(([length]) => length >= this.grid.step_s) ?? TICKS.at(-1);
    const cells = Array.from({ length: this.grid.columns }, (_, place) => {
      const ms = this.time(place);
      const day = ms % DAY_MS === 0;
      const words = day ? new Date(ms).toISOString().slice(5, 10) : at(ms);
      return h("td", { class: day ? "hour day" : "hour", "aria-hidden": "true" }, (ms / MINUTE_MS) % every === 0 && place < this.grid.columns - 2 && h("span", {}, words));
    });
    return h("tr", {}, h("th", { scope: "col", class: "row-name" }, what[0].toUpperCase() + what.slice(1), h("span", { class: "sr-only" }, ", times in UTC")), cells);
  }

  row(row, index, most) {
    const cells = Array.from({ length: this.grid.columns }, (_, place) => this.cell(row, index, place, most));
    return h("tr", { "data-row": row.key }, h("th", { scope: "row", class: "row-name" }, row.label), cells);
  }

  cell(row, index, place, most) {
    const cell = row.byPlace.get(place);
    const chosen = this.focused.row === index && this.focused.place === place;
    const heat = cell ? (0.4 + 0.6 * Math.log1p(eventsOf(cell)) / Math.log1p(most)).toFixed(2) : null;
    return h("td", {
      class: cell ? cell.verdict : "nothing", role: "gridcell", tabindex: chosen ? "0" : "-1", "data-place": place, vars: cell && { "--heat": heat },
      "aria-label": cellWords(`${row.name}, ${this.when(place)}`, cell),
    }, h("i", {}));
  }

  time(place) {
    return this.since + place * this.grid.step_s * 1000;
  }

  when(place) {
    const long = this.grid.step_s > 900 || this.grid.columns * this.grid.step_s > 86_400;
    const [begin, end] = [at(this.time(place), long), at(this.time(place + 1), false)];
    return this.grid.step_s === 60 ? begin : `${begin} to ${end}`;
  }

  at({ row, place }) {
    return this.frame.querySelector(`tbody tr:nth-child(${row + 1}) td[data-place="${place}"]`);
  }

  placeOf(td) {
    return { row: [...td.parentElement.parentElement.children].indexOf(td.parentElement), place: Number(td.dataset.place) };
  }

  point(event) {
    const td = event.target.closest("td[data-place]");
    if (td && event.pointerType !== "touch") this.show(td);
    else if (!td) this.hide();
  }

  focus(target) {
    if (!target.matches("td[data-place]")) return;
    this.at(this.focused)?.setAttribute("tabindex", "-1");
    this.focused = this.placeOf(target);
    target.setAttribute("tabindex", "0");
    target.scrollIntoView({ block: "nearest", inline: "nearest" });
    this.show(target);
  }

  key(event) {
    if (event.key === "Escape") return this.hide();
    if (!event.target.matches("td[data-place]")) return undefined;
    const { row, place } = this.focused;
    const [down, right] = STEPS[event.key] ?? [0, 0];
    const next = { Home: { row, place: 0 }, End: { row, place: this.grid.columns - 1 } }[event.key] ?? { row: row + down, place: place + right };
    if (next.row === row && next.place === place) return undefined;
    event.preventDefault();
    this.at(next)?.focus();
    return undefined;
  }

  show(td) {
    const { row, place } = this.placeOf(td);
    const { name, byPlace } = this.rows[row];
    const cell = byPlace.get(place);
    const verdict = cell?.verdict ?? "nothing";
    fill(this.card,
      h("p", { class: "cell-when" }, h("strong", {}, name), ` ${this.when(place)} UTC`),
      h("p", { class: `verdict ${verdict}` }, h("span", { class: `mark ${verdict}` }, h("i", {})), verdictWords(verdict), cell?.gap ? `: ${count(cell.gap)} missing or too many` : ""),
      (cell?.why ?? []).map((words) => h("p", { class: "cell-why" }, words)),
      cell && h("dl", { class: "equations" }, equations(cell).map((one) => [
        h("dt", {}, one.stage), h("dd", {}, h("strong", {}, one.left), one.right && ` = ${one.right}`, one.off && h("span", { class: verdict === "breach" ? "off bad" : "off" }, one.off)),
      ])));
    this.card.hidden = false;
    this.place(td);
  }

  /** Put the card beside a cell, where there is room. */
  place(td) {
    const [around, cell, card] = [this.element, td, this.card].map((one) => one.getBoundingClientRect());
    const left = Math.min(Math.max(0, cell.left - around.left - card.width / 2), around.width - card.width);
    const above = cell.bottom + card.height + 14 > innerHeight && cell.top - card.height - 10 > 0;
    const top = above ? cell.top - around.top - card.height - 8 : cell.bottom - around.top + 8;
    this.card.style.setProperty("--left", `${Math.max(0, left)}px`);
    this.card.style.setProperty("--top", `${top}px`);
  }

  scrolled() {
    const td = document.activeElement;
    if (!this.card.hidden && this.frame.contains(td) && td.matches("td[data-place]")) this.place(td);
    else this.hide();
  }

  hide() {
    this.card.hidden = true;
  }
}

/** Return what the marks mean. */
export function legend() {
  return h("ul", { class: "legend", "aria-label": "What the marks mean" }, ["balanced", "moving", "breach", "nothing"].map((verdict) =>
    h("li", {}, h("span", { class: `mark ${verdict}`, "aria-hidden": "true" }, h("i", {})), verdictWords(verdict))));
}
