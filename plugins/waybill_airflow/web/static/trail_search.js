// The search box: one id, a primary key of a pipeline, or many ids pasted or from a file.

import { fill, h, icon } from "./dom.js";
import { notice } from "./notices.js";
import { count, fromField, toField } from "./words.js";

export const MOST_IDS = 1000;
const MOST_BYTES = 4_000_000;
const WAYS = [["id", "Event id"], ["key", "Primary key"], ["many", "Many ids"]];
const OWN_ID = /^[\s"'`,;]*([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(\/\d+)*[\s"'`,;]*$/i;

/** Return the ids of a pasted text: one a line; ids of hex digits also in one line. */
export function idsIn(text) {
  const found = text.split(/\r\n|\r|\n/).flatMap((line) => {
    const parts = line.split(/[\s,;]+/).filter(Boolean);
    return parts.length > 1 && parts.every((part) => OWN_ID.test(part)) ? parts : [line];
  });
  return [...new Set(found.filter((one) => one.trim()))];
}

/** The search; `onask` gets the body of the API's question. */
export class Search {
  constructor(pipelines, onask) {
    this.pipelines = pipelines;
    this.onask = onask;
    this.way = "id";
    this.made = this.makeFields();
    this.fields = h("div", { class: "fields", id: "ways-panel", role: "tabpanel" });
    this.window = this.makeWindow();
    this.button = h("button", { type: "submit", class: "button solid" }, "Find");
    this.tabs = WAYS.map(([way, words]) => h("button", { type: "button", role: "tab", class: "tab", "data-way": way, "aria-controls": "ways-panel", onclick: () => this.choose(way), onkeydown: (event) => this.move(event) }, words));
    this.element = h(
      "form", { class: "search", role: "search", "aria-label": "Find events", onsubmit: (event) => this.submit(event) },
      h("div", { class: "tabs", role: "tablist", "aria-label": "Ways to ask" }, this.tabs), this.fields,
      h("div", { class: "search-foot" }, this.window, this.button),
    );
    this.choose("id");
  }

  makeFields() {
    const text = (name, more) => h("input", { type: "text", name, id: `ask-${name}`, autocomplete: "off", spellcheck: "false", ...more });
    const many = h("textarea", { name: "many", id: "ask-many", rows: "6", spellcheck: "false", placeholder: "One id a line", oninput: () => this.tell() });
    const file = h("input", { type: "file", id: "ask-file", class: "sr-only", accept: ".txt,.csv,text/plain", onchange: (event) => this.take(event.target) });
    return {
      id: text("id", { placeholder: "32 hex digits, or the producer's own id", class: "mono" }),
      pipeline: text("pipeline", { placeholder: "name or id", list: "ask-pipelines" }),
      event_name: text("event_name", { placeholder: "any" }),
      key: text("key", { placeholder: "4711" }),
      many, file, told: h("span", { class: "muted told" }, `up to ${count(MOST_IDS)} ids`),
    };
  }

  makeWindow() {
    const edge = (name, words) => {
      const input = h("input", { type: "datetime-local", name, id: `ask-${name}`, max: "9999-12-31T23:59" });
      return [h("div", { class: "field" }, h("label", { class: "label", for: `ask-${name}` }, words), input), input];
    };
    const [since, sinceInput] = edge("since", "From (UTC)");
    const [until, untilInput] = edge("until", "To (UTC)");
    Object.assign(this.made, { since: sinceInput, until: untilInput });
    return h("details", { class: "window" }, h("summary", {}, "Only a time (reads less)"), h("div", { class: "pair" }, since, until));
  }

  choose(way) {
    this.way = way;
    for (const tab of this.tabs) {
      const own = tab.dataset.way === way;
      tab.setAttribute("aria-selected", String(own));
      tab.tabIndex = own ? 0 : -1;
    }
    const { id, pipeline, event_name, key, many, file, told } = this.made;
    const labelled = (words, input, note) => h("div", { class: "field" }, h("label", { class: "label", for: input.id }, words), input, note && h("span", { class: "note" }, note));
    const options = this.pipelines.map((one) => h("option", { value: one.name }, one.team));
    const fields = {
      id: () => [labelled("Event id", id)],
      key: () => [h("div", { class: "key-fields" }, labelled("Pipeline", pipeline), labelled("Event name", event_name), labelled("Key", key, "Of several fields: a JSON array, as [\"EU\", 4711]")), h("datalist", { id: "ask-pipelines" }, options)],
      many: () => [labelled("Event ids", many), h("div", { class: "from-file" }, file, h("label", { class: "button", for: file.id }, icon("open"), "From a file"), told)],
    };
    fill(this.fields, fields[way]());
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const index = WAYS.findIndex(([way]) => way === this.way);
    this.choose(WAYS[(index + step + WAYS.length) % WAYS.length][0]);
    this.tabs.find((tab) => tab.dataset.way === this.way).focus();
  }

  async take(input) {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    if (file.size > MOST_BYTES) {
      notice(`${file.name} is too large to be a list of ids.`, "error");
      return;
    }
    this.made.many.value = await file.text();
    this.tell();
  }

  tell() {
    const number = idsIn(this.made.many.value).length;
    const words = number > MOST_IDS ? `${count(number)} ids: at most ${count(MOST_IDS)} at once` : number ? `${count(number)} different ids` : `up to ${count(MOST_IDS)} ids`;
    fill(this.made.told, words);
  }

  body() {
    const { id, pipeline, event_name, key, many, since, until } = this.made;
    const window = { since: fromField(since.value), until: fromField(until.value) };
    if (this.way === "id") return { ids: id.value.trim() ? [id.value] : [], ...window };
    if (this.way === "many") return { ids: idsIn(many.value), ...window };
    return { pipeline: pipeline.value.trim(), key: [key.value], event_name: event_name.value || null, ...window };
  }

  submit(event) {
    event.preventDefault();
    const body = this.body();
    if (body.ids ? !body.ids.length : !body.pipeline || !body.key[0].trim()) {
      notice(body.ids ? "Give an event id first." : "Give the pipeline and the key first.", "info");
      return;
    }
    this.onask(body);
  }

  busy(is) {
    this.button.disabled = is;
  }

  /** Put a question into the fields. */
  fill(question) {
    const { id, pipeline, event_name, key, many, since, until } = this.made;
    if (question.key) {
      const { pipeline_id, values } = question.key;
      pipeline.value = this.pipelines.find((one) => one.id === pipeline_id)?.name ?? pipeline_id;
      event_name.value = question.key.event_name ?? "";
      key.value = values.length === 1 ? values[0] : JSON.stringify(values);
      this.choose("key");
    } else if (question.ids.length === 1) {
      [id.value] = question.ids;
      this.choose("id");
    } else {
      many.value = question.ids.join("\n");
      this.choose("many");
      this.tell();
    }
    since.value = toField(question.since);
    until.value = toField(question.until);
    this.window.open = Boolean(question.since || question.until);
  }
}
