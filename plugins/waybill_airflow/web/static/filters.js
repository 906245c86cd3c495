// The filters above the list: every dimension, and a window on event time or parked time, in UTC.

import { DEFAULTS, FILTERS } from "./address.js";
import { takes } from "./client.js";
import { h, icon } from "./dom.js";
import { fromField, plain, toField } from "./words.js";

const TYPING_MS = 350;
const WINDOWS = [["1 h", 1], ["24 h", 24], ["7 d", 168], ["30 d", 720]];
const CLEARED = [...FILTERS, "clock", "since", "until", "held", "after"];

/** Return the query of the API's list for a view. */
export function queryOf(view) {
  const window = {
    [`${view.clock}_since`]: view.since,
    [`${view.clock}_until`]: view.until,
  };
  const { pipeline, event_name, stage, error_type } = view;
  const held = view.held === "true" ? "true" : "";
  return { pipeline, event_name, stage, error_type, ...window, held };
}

/** Tell whether a view narrows the list at all. */
export function narrows(view) {
  return [...FILTERS, "since", "until"].some((name) => view[name] !== "");
}

/**
 * Return the filter bar.
 * `world` has names (pipelines) and catalogue; `onchange` gets what changed of the view.
 */
export function filterBar(view, world, onchange) {
  const change = (part) => onchange({ ...part, after: "" });
  return h(
    "form",
    { class: `filters${narrows(view) ? " open" : ""}`, role: "search", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    h("button", { type: "button", class: "button unfold", onclick: (event) => event.target.closest("form").classList.toggle("open") }, "Filters"),
    field("Pipeline", pipelineInput(view, world, change)),
    field("Event name", textInput("event_name", view, change, { placeholder: "any" })),
    field("Stage", choice("stage", view.stage, stages(world), change)),
    field("Error type", choice("error_type", view.error_type, errorTypes(view, world), change)),
    field("Show", choice("held", view.held, [["true", "waiting now"], ["false", "all ever parked"]], change)),
    windowFields(view, change),
    clearButton(view, onchange),
  );
}

function field(label, input) {
  const control = input.querySelector("input") ?? input;
  control.id = `filter-${control.name}`;
  return h("div", { class: "field" }, h("label", { class: "label", for: control.id }, label), input);
}

function clearButton(view, onchange) {
  const none = Object.fromEntries(CLEARED.map((name) => [name, DEFAULTS[name]]));
  const hidden = !narrows(view);
  const button = { type: "button", class: "button quiet clear", hidden, onclick: () => onchange(none) };
  return h("button", button, icon("close"), "Clear filters");
}

function typed(change) {
  let timer = 0;
  return {
    later: (part) => {
      clearTimeout(timer);
      timer = setTimeout(() => change(part), TYPING_MS);
    },
    now: (part) => {
      clearTimeout(timer);
      change(part);
    },
  };
}

function textInput(name, view, change, extra = {}) {
  const when = typed(change);
  return h("input", {
    type: "text", name, value: view[name], autocomplete: "off", spellcheck: "false", ...extra,
    oninput: (event) => when.later({ [name]: event.target.value }),
    onchange: (event) => when.now({ [name]: event.target.value }),
  });
}

function pipelineInput(view, world, change) {
  const options = world.names.pipelines.map(({ name, team }) => h("option", { value: name }, team));
  return h(
    "span",
    { class: "with-list" },
    textInput("pipeline", view, change, { placeholder: "any", list: "pipelines" }),
    h("datalist", { id: "pipelines" }, options),
  );
}

function stages(world) {
  return [["", "any"], ...world.catalogue.stages.map((stage) => [stage, stage])];
}

function errorTypes(view, world) {
  const known = world.catalogue.error_types;
  const groups = new Map();
  for (const one of known) {
    if (view.stage && one.stage !== view.stage && one.stage !== "any") continue;
    groups.set(one.stage, [...(groups.get(one.stage) ?? []), [one.code, plain(one.code), one.title]]);
  }
  const given = view.error_type;
  const other = given && ![...groups.values()].flat().some(([code]) => code === given) ? [[given, plain(given)]] : [];
  return [["", "any"], ...other, ...groups];
}

function choice(name, value, options, change) {
  const items = options.map(([key, shown]) =>
    Array.isArray(shown)
      ? h("optgroup", { label: key === "any" ? "any stage" : key }, shown.map(([code, text, title]) => option(code, text, value, title)))
      : option(key, shown, value),
  );
  return h("select", { name, onchange: (event) => change({ [name]: event.target.value }) }, items);
}

function option(key, text, value, title) {
  return h("option", { value: key, selected: key === value, title }, text);
}

function windowFields(view, change) {
  const clocks = [["event", "event time"], ["parked", "parked time"]].filter(([name]) => takes("GET", "/partitions", `${name}_since`));
  const presets = WINDOWS.map(([text, hours]) =>
    h("button", { type: "button", class: "preset", title: `The last ${text}, by ${view.clock} time`, onclick: () => change(last(hours)) }, text),
  );
  return h(
    "fieldset",
    { class: "window" },
    h("legend", { class: "sr-only" }, "Time window, in UTC"),
    field("Window on", choice("clock", view.clock, clocks, change)),
    field("From (UTC)", timeInput("since", view, change)),
    field("To (UTC)", timeInput("until", view, change)),
    h("span", { class: "presets", role: "group", "aria-label": "Window presets" }, presets),
  );
}

function last(hours) {
  const since = new Date(Math.floor(Date.now() / 60_000) * 60_000 - hours * 3_600_000);
  return { since: since.toISOString().replace(".000Z", "Z"), until: "" };
}

function timeInput(name, view, change) {
  return h("input", {
    type: "datetime-local", name, value: toField(view[name]), max: "9999-12-31T23:59",
    onchange: (event) => change({ [name]: fromField(event.target.value) ?? "" }),
  });
}
