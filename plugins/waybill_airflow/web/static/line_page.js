// A page of lines that are found by words, in pages by name: "Overview" and "Sources".

import { tellOuter } from "./address.js";
import { ask } from "./client.js";
import { fill, h, icon, redraw, refill } from "./dom.js";
import { waiting } from "./list.js";
import { live } from "./live_page.js";
import { problem } from "./notices.js";
import { Pager } from "./pager.js";
import { count, many } from "./words.js";

const TYPING_MS = 350;

/**
 * Begin such a page; what is returned asks for its lines again.
 *
 * `title` and `intro` head it; `path` is asked for its lines, each `againMs`, `lines` finds them in
 * the answer; one of them is a `noun`. `filters` says what each filter beside the words may be;
 * `choices(view, change)` shows them. `tiles(found)` are the numbers at the top, `look` and `heads`
 * (words, class, explanation) are the table's. `row(line)` draws a line, whose id is its
 * `key`; `none(view)` says what it means that there is none, in two sentences.
 */
export function linePage({ title, intro, path, againMs, lines, noun, filters, choices, tiles, look, heads, key, row, none, prepare }) {
  const page = document.getElementById("page");
  let view = {};
  let parts = null;

  function read() {
    const given = new URLSearchParams(location.hash.slice(1));
    view = { words: given.get("words") ?? "", after: given.get("after") ?? "" };
    for (const [name, values] of Object.entries(filters)) view[name] = values.includes(given.get(name)) ? given.get(name) : "";
  }

  function change(part) {
    view = { ...view, after: "", ...part };
    if (!view.after) parts.pager.forget();
    const given = Object.entries(view).filter(([, value]) => value);
    history.replaceState(null, "", `${location.pathname}${location.search}${given.length ? `#${new URLSearchParams(given)}` : ""}`);
    tellOuter();
    return load();
  }

  function show() {
    read();
    tellOuter();
    const turn = (after) => change({ after }).then(() => page.scrollIntoView({ block: "start" }));
    parts = { totals: h("div", { class: "totals", "aria-live": "polite" }), table: h("div", { class: "table-frame" }), pager: new Pager(turn) };
    fill(page, h("header", { class: "head" }, h("div", {}, h("h1", {}, title), h("p", { class: "muted" }, intro)), parts.totals), finder(), parts.table, parts.pager.element);
    fill(parts.table, waiting());
    return load();
  }

  function finder() {
    let typing = 0;
    const words = (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ words: event.target.value }), TYPING_MS);
    };
    return h("form", { class: "finder", role: "search", onsubmit: (event) => event.preventDefault() },
      h("input", { type: "search", name: "words", value: view.words, "aria-label": "Find by name or team", placeholder: "Find by name or team", autocomplete: "off", spellcheck: "false", maxlength: "300", oninput: words }),
      choices(view, change));
  }

  /** Ask for the view's lines; a stale answer is dropped. */
  async function numbers(signal, isCurrent) {
    parts.table.setAttribute("aria-busy", "true");
    try {
      const found = await ask(path, { query: view, signal });
      if (!isCurrent()) return;
      draw(found);
    } finally {
      if (isCurrent()) parts.table.removeAttribute("aria-busy");
    }
  }

  function draw(found) {
    redraw(parts.totals, () => refill(parts.totals, tiles(found).map(([number, words, state]) => h("div", { class: `tile ${state ?? ""}` }, h("strong", {}, count(number)), h("span", {}, words))),
      h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: () => load() }, icon("refresh"))));
    const drawnLines = lines(found).map((line) => row(line));
    redraw(parts.table, () => fill(parts.table, drawnLines.length ? h("table", { class: look, role: "table" }, h("caption", { class: "sr-only" }, title),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map(([words, style, meaning]) => h("th", { scope: "col", role: "columnheader", class: style, title: meaning }, words || h("span", { class: "sr-only" }, "Actions"))))),
      h("tbody", { role: "rowgroup" }, drawnLines)) : empty()));
    const shown = drawnLines.length;
    parts.pager.draw({ words: shown ? `${many(shown, noun)} of ${count(found.total)}, by name` : "", after: view.after, next: found.next });
  }

  function empty() {
    const [what, hint] = none(view);
    const isNarrowed = Object.entries(view).some(([name, value]) => name !== "after" && value);
    return h("div", { class: "empty" }, icon(isNarrowed ? "check" : "clock"), h("p", {}, what), h("p", { class: "muted" }, hint));
  }

  const load = live(page, { againMs, prepare, show, load: numbers, failed: (error, again) => fill(parts.table, problem(error, again)) });
  return load;
}

/**
 * Return a cell of a line; on a narrow screen its label stands before it. Roles are named, as the
 * style sheet lays lines out as cards there, which takes an element's own role from it.
 */
export function cell(label, look, ...content) {
  return h("td", { class: look, role: "cell", "data-label": label }, ...content);
}

/** Return a line of these cells, with what heads it. */
export function tableRow(id, head, ...cells) {
  return h("tr", { "data-id": id, role: "row" }, h("th", { scope: "row", role: "rowheader" }, head), cells);
}
