// Numbers over time as lines: a chart with a place that the pointer and the arrow keys move, and a
// small one for a table's cell. Where nothing was measured the line has a gap.

import { fill, h, svg } from "./dom.js";

const HIGH = 100;
const ROOM = 1.12; // above the highest number

/** Return the path of a line; a number beside gaps is a short stroke. */
function path(values, most) {
  let text = "";
  let drawn = false;
  values.forEach((value, place) => {
    if (value === null) drawn = false;
    else {
      const y = (HIGH - (HIGH * value) / most).toFixed(2);
      text += drawn ? `L${place} ${y}` : `M${place} ${y}h0.01`;
      drawn = true;
    }
  });
  return text;
}

/** Return the path of what is under a line, one shape for each stretch without a gap. */
function under(values, most) {
  const parts = [];
  let from = null;
  [...values, null].forEach((value, place) => {
    if (value !== null) from ??= place;
    else if (from !== null) {
      const points = values.slice(from, place).map((one, step) => `L${from + step} ${(HIGH - (HIGH * one) / most).toFixed(2)}`);
      parts.push(`M${from} ${HIGH}${points.join("")}L${place - 1} ${HIGH}Z`);
      from = null;
    }
  });
  return parts.join("");
}

/** Return strokes at the foot of a chart, over the steps that have something. */
function stretches(steps, last) {
  return Object.keys(steps).map(Number).map((step) => `M${Math.max(0, step - 0.5)} ${HIGH}H${Math.min(last, step + 0.5)}`).join("");
}

function hotTimes(spots) {
  const names = [...new Set(spots.flat())].slice(0, 5);
  return names.length ? `; hot at times: ${names.join(", ")}` : "";
}

function highest(lines) {
  return Math.max(1e-9, ...lines.flatMap((line) => line.values).filter((value) => value !== null));
}

/** Milliseconds → "14:05", in UTC. */
function clock(ms) {
  return new Date(ms).toISOString().slice(11, 16);
}

/**
 * Return a chart; `key` tells it from others. `lines` are {look, words, values}: the first has its area filled. `grid` is
 * {since, step_s, steps} of the API; `marks` are [ms, words] of what happened, `spots` names of what was hot, by step; `shown` writes a number.
 */
export function chart({ key: own, title, grid, lines, marks = [], spots = [], shown }) {
  const most = highest(lines) * ROOM;
  const since = Date.parse(grid.since);
  const last = grid.steps - 1;
  const cursor = svg("path", { class: "cursor" });
  const value = h("span", { class: "chart-value", "aria-live": "polite" });
  const names = h("span", { class: "hot-names", "aria-hidden": "true" });
  let place = null;
  const at = (ms) => Math.min(last, Math.max(0, (ms - since) / (grid.step_s * 1000) - 0.5));
  const plot = svg("svg", { viewBox: `0 0 ${last} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { class: `area ${lines[0].look}`, d: under(lines[0].values, most) }),
    marks.map(([ms, words]) => svg("path", { class: "happened", d: `M${at(ms).toFixed(2)} 0V${HIGH}` }, svg("title", {}, words))),
    lines.map((line) => svg("path", { class: `line ${line.look}`, d: path(line.values, most) })),
    svg("path", { class: "hot-times", d: stretches(spots, last) }), cursor);

  const words = (one) => lines.filter((line) => line.values[one] !== null).map((line) => `${line.words} ${shown(line.values[one])}`).join(", ") || "not measured";
  const hot = (one) => (spots[one] ? `hot: ${spots[one].join(", ")}` : "");
  const show = (one) => {
    place = one;
    cursor.setAttribute("d", one === null ? "" : `M${one} 0V${HIGH}`);
    fill(value, one !== null && [`${clock(since + one * grid.step_s * 1000)} UTC: ${words(one)}`, spots[one] && h("span", { class: "sr-only" }, `; ${hot(one)}`)]);
    fill(names, one === null ? "" : hot(one));
    element.classList.toggle("pointed", one !== null);
  };
  const point = (event) => {
    const box = plot.getBoundingClientRect();
    show(Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * last));
  };
  const key = (event) => {
    const next = { ArrowLeft: (place ?? last + 1) - 1, ArrowRight: (place ?? last) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") show(null);
    if (next === undefined) return;
    event.preventDefault();
    show(Math.min(last, Math.max(0, next)));
  };
  const peak = Math.max(0, ...lines[0].values.filter((one) => one !== null));
  const element = h("figure", { class: "chart" },
    h("figcaption", {}, h("strong", {}, title), h("ul", { class: "keys" }, lines.map((line) => h("li", { class: line.look }, line.words))), value),
    h("div", { class: "plot", "data-chart": own, tabindex: "0", role: "img", "aria-label": `${title} over time: ${lines[0].words} at most ${shown(peak)}, now ${words(last)}${hotTimes(spots)}`, onpointermove: point, onpointerleave: () => show(null), onkeydown: key, onblur: () => show(null) },
      h("span", { class: "most", "aria-hidden": "true" }, shown(most / ROOM)), names, plot),
    h("div", { class: "axis", "aria-hidden": "true" }, [0, 1 / 3, 2 / 3].map((part) => h("span", {}, clock(since + part * grid.steps * grid.step_s * 1000))), h("span", {}, "now")));
  return element;
}

/** Return a drawing that the server made; null where it is none. */
export function drawing(markup) {
  const found = new DOMParser().parseFromString(markup, "image/svg+xml").documentElement;
  return found.localName === "svg" ? document.importNode(found, true) : null;
}

/** Return small lines {look, values} for a cell; the first has its area filled. */
export function spark(lines, words) {
  const most = highest(lines) * ROOM;
  return svg("svg", { class: "spark-line", viewBox: `0 0 ${lines[0].values.length - 1} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("title", {}, words), svg("path", { class: `area ${lines[0].look}`, d: under(lines[0].values, most) }),
    lines.map((line) => svg("path", { class: `line ${line.look}`, d: path(line.values, most) })));
}
