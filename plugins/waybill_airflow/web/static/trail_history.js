// The questions so far: whose, how far, and what came of them; those that run can be cancelled.

import { ask } from "./client.js";
import { fill, h, icon, redraw } from "./dom.js";
import { problem } from "./notices.js";
import { ago, count, time } from "./words.js";

const AGAIN_MS = 2_500;
const OPEN = ["queued", "running"];

/** The list; `onopen` and `oncancel` get a question's id. */
export class History {
  constructor(onopen, oncancel) {
    this.onopen = onopen;
    this.oncancel = oncancel;
    this.list = h("ol", { class: "queries" });
    this.element = h("aside", { class: "history", "aria-label": "Questions so far" }, h("h2", {}, "Questions so far"), this.list);
    this.shown = "";
    this.timer = 0;
  }

  async load() {
    clearTimeout(this.timer);
    try {
      const { queries } = await ask("/trails");
      redraw(this.list, () => fill(this.list, queries.length ? queries.map((one) => this.row(one)) : h("li", { class: "muted none" }, "None yet. Answers are kept for a while, to be looked at again.")));
      this.mark(this.shown);
      if (queries.some((one) => OPEN.includes(one.state))) this.timer = setTimeout(() => this.load(), AGAIN_MS);
    } catch (error) {
      fill(this.list, h("li", {}, problem(error, () => this.load())));
    }
  }

  /** Mark the question that is shown. */
  mark(id) {
    this.shown = id;
    for (const row of this.list.querySelectorAll("[data-query]")) {
      row.querySelector(".query").setAttribute("aria-current", String(row.dataset.query === id));
    }
  }

  row(one) {
    const runs = OPEN.includes(one.state);
    const far = one.state === "running" && one.objects ? `${count(one.objects_read)} of ${count(one.objects)}` : "";
    return h(
      "li", { "data-query": one.id },
      h(
        "button", { type: "button", class: "query", onclick: () => this.onopen(one.id) },
        h("span", { class: "query-words" }, one.words),
        h("span", { class: "sub", title: `${time(one.asked_at)} UTC` }, `${one.asked_by}, ${ago(one.asked_at)}`),
        h("span", { class: `state ${one.state}` }, one.cancel_asked && runs ? "ending" : one.state, far && ` ${far}`),
        runs && one.objects > 0 && h("progress", { max: one.objects, value: one.objects_read, "aria-label": "Objects read" }),
      ),
      runs && h("button", { type: "button", class: "button icon-only quiet", "aria-label": "Cancel this question", title: "Cancel", disabled: one.cancel_asked, onclick: () => this.oncancel(one.id) }, icon("stop")),
    );
  }
}
