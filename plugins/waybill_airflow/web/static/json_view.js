// A payload as indented JSON, by text nodes only. The field that an error names is marked; what is
// very long, wide or deep is cut on screen, and says so.

import { ExactNumber } from "./client.js";
import { h } from "./dom.js";
import { count, many } from "./words.js";

const MOST_NODES = 4_000;
const MOST_TEXT = 8_000;
const MOST_DEPTH = 80;
const FIELD = /^[\p{L}\p{N}_$@. \-[\]"']+$/u;
const PLACE = /^(line|row|record)\s+\d+|:\d+( in |$)/i;

/** Return the field that an error's `where` names, as a path ("items.0.price"); "" for a line of code. */
export function fieldOf(where) {
  const text = (where ?? "").trim();
  if (!text || PLACE.test(text) || !FIELD.test(text)) return "";
  return text
    .replace(/^(column|field|path)\s+/i, "")
    .replace(/^\$\.?/, "")
    .replace(/\[["']?([^\]"']*)["']?\]/g, ".$1")
    .replace(/["']/g, "")
    .replace(/^\./, "");
}

/** Return the path of the payload that a field means, as a list of keys; null when it has none. */
export function find(payload, field) {
  if (!field) return null;
  const wanted = field.split(".");
  let level = [[[], payload]];
  for (let seen = 0; level.length && seen < MOST_NODES; ) {
    const below = [];
    for (const [path, value] of level) {
      seen += 1;
      if (has(value, field)) return [...path, field];
      if (leads(value, wanted)) return [...path, ...wanted];
      for (const [key, child] of children(value)) if (isTree(child)) below.push([[...path, key], child]);
    }
    level = below;
  }
  return null;
}

function isTree(value) {
  return value !== null && typeof value === "object" && !(value instanceof ExactNumber);
}

function has(value, key) {
  return isTree(value) && Object.hasOwn(value, key);
}

function leads(value, path) {
  let at = value;
  for (const key of path) {
    if (!has(at, key)) return false;
    at = at[key];
  }
  return true;
}

function* children(value) {
  if (isTree(value)) yield* Object.entries(value).slice(0, MOST_NODES);
}

/** Return a payload as a <pre>; `marked` is a path of `find`. */
export function jsonView(payload, marked, masked = []) {
  const state = { left: MOST_NODES, marked: marked ? JSON.stringify(marked) : null, masked: new Set(masked) };
  const lines = h("pre", { class: "json", role: "group", tabindex: "0", "aria-label": "Payload" });
  lines.append(...node(payload, [], state));
  return lines;
}

function node(value, path, state) {
  state.left -= 1;
  if (Array.isArray(value)) return tree(value.map((one, index) => [index, one]), "[]", path, state);
  if (isTree(value)) return tree(Object.entries(value), "{}", path, state);
  return [leaf(value)];
}

function leaf(value) {
  if (value instanceof ExactNumber) return h("span", { class: "json-number" }, value.source);
  if (typeof value === "string") return h("span", { class: "json-text" }, JSON.stringify(cut(value)), more(value));
  if (typeof value === "number") return h("span", { class: "json-number" }, String(value));
  return h("span", { class: "json-word" }, String(value));
}

function cut(text) {
  return text.length > MOST_TEXT ? text.slice(0, MOST_TEXT) : text;
}

function more(text) {
  return text.length > MOST_TEXT && h("span", { class: "json-more" }, ` … ${many(text.length - MOST_TEXT, "more character")}`);
}

function tree(entries, brackets, path, state) {
  const [open, close] = brackets;
  if (!entries.length) return [brackets];
  if (path.length >= MOST_DEPTH) return [h("span", { class: "json-more" }, `${open} … ${close} nested deeper: download to see it`)];
  const inner = "  ".repeat(path.length + 1);
  const parts = [open, "\n"];
  for (const [index, [key, value]] of entries.entries()) {
    if (state.left <= 0) {
      parts.push(inner, h("span", { class: "json-more" }, `… ${count(entries.length - index)} more: download to see all`), "\n");
      break;
    }
    parts.push(inner, ...entry(key, value, [...path, String(key)], open === "{", state));
    parts.push(index < entries.length - 1 ? "," : "", "\n");
  }
  return [...parts, "  ".repeat(path.length), close];
}

function entry(key, value, path, named, state) {
  const marked = state.marked !== null && JSON.stringify(path) === state.marked;
  const head = named ? [h("span", { class: "json-key" }, JSON.stringify(cut(key))), ": "] : [];
  const masked = named && state.masked.has(key);
  const parts = [...head, ...node(value, path, state)];
  if (masked) parts.push(h("span", { class: "json-masked", title: "Personal data: masked" }, "masked"));
  return marked ? [h("mark", { class: "json-failing", title: "The error names this field" }, parts)] : parts;
}

/** Return bytes that are no JSON, as text. */
export function textView(text) {
  return h("pre", { class: "json raw", role: "group", tabindex: "0", "aria-label": "Payload" }, cut(text), more(text));
}
