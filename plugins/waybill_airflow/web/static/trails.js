// The page "Where is that event?": a search in three ways, the answer, and the questions so far.

import { tellOuter } from "./address.js";
import { ask, change } from "./client.js";
import { fill, h } from "./dom.js";
import { notice, problem } from "./notices.js";
import { followTheme } from "./theme.js";
import { drawAnswer, drawProgress } from "./trail_answer.js";
import { History } from "./trail_history.js";
import { MOST_IDS, Search } from "./trail_search.js";
import { count, many } from "./words.js";

const page = document.getElementById("page");
const FIRST_MS = 300;
const SLOWEST_MS = 2_000;

class Asking {
  constructor(names) {
    this.result = h("section", { class: "result", "aria-label": "Answer", "aria-live": "polite" });
    this.search = new Search(names, (body) => this.ask(body));
    this.history = new History((id) => this.open(id), (id) => this.cancel(id));
    this.shown = "";
    this.timer = 0;
  }

  /** Draw the page; the address may name a question, or an id to ask for. */
  async show() {
    fill(page, this.head(), h("div", { class: "columns" }, h("div", { class: "asking" }, this.search.element, this.result), this.history.element));
    await Promise.all([this.history.load(), this.follow()]);
  }

  head() {
    return h(
      "header", { class: "head" },
      h("h1", {}, "Where is that event?"),
      h("p", { class: "muted" }, "Every point that an event passed, from where it was taken in to where it is now: by its id, by its primary key, or many at once."),
    );
  }

  /** Show what the address names. */
  async follow() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (given.has("query")) {
      if (given.get("query") !== this.shown) await this.open(given.get("query"));
    } else if (given.has("id")) await this.askFor([given.get("id")]);
    else if (given.has("breach")) await this.askForBreach(given.get("breach"));
  }

  askFor(ids) {
    this.search.fill({ ids });
    return this.ask({ ids });
  }

  /** Ask for the events that a breach names: as many as one question takes. */
  async askForBreach(id) {
    try {
      const { missing, doubled } = await ask(`/breaches/${encodeURIComponent(id)}`);
      const ids = [...new Set([...missing, ...doubled])];
      if (ids.length > MOST_IDS) notice(`These are the first ${count(MOST_IDS)} of ${many(ids.length, "event")}.`, "info");
      if (ids.length) await this.askFor(ids.slice(0, MOST_IDS));
      else notice("The events of this breach are not named.", "info");
    } catch (error) {
      fill(this.result, problem(error, error.status === 404 ? null : () => this.askForBreach(id)));
    }
  }

  async ask(body) {
    this.leave();
    this.search.busy(true);
    this.shown = "";
    fill(this.result, drawProgress({ state: "queued", objects: 0, objects_read: 0 }, null));
    try {
      this.draw(await change("POST", "/trails", body));
    } catch (error) {
      fill(this.result, problem(error, () => this.ask(body)));
    } finally {
      this.search.busy(false);
      this.history.load();
    }
  }

  async open(id) {
    this.leave();
    try {
      const query = await ask(`/trails/${encodeURIComponent(id)}`);
      this.search.fill(query.question);
      this.draw(query);
      if (innerWidth < 1100) this.result.scrollIntoView({ block: "start" });
    } catch (error) {
      fill(this.result, problem(error, error.status === 404 ? null : () => this.open(id)));
    }
  }

  /** Draw a question; one that has not ended is asked for again. */
  draw(query, waitMs = FIRST_MS) {
    this.shown = query.id;
    write(query.id);
    this.history.mark(query.id);
    if (query.state === "queued" || query.state === "running") {
      fill(this.result, drawProgress(query, () => this.cancel(query.id)));
      this.timer = setTimeout(() => this.again(query.id, Math.min(SLOWEST_MS, waitMs * 1.3)), waitMs);
      return;
    }
    fill(this.result, drawAnswer(query));
    this.history.load();
  }

  async again(id, waitMs) {
    try {
      const query = await ask(`/trails/${encodeURIComponent(id)}`);
      if (this.shown === id) this.draw(query, waitMs);
    } catch (error) {
      if (this.shown === id) fill(this.result, problem(error, () => this.open(id)));
    }
  }

  async cancel(id) {
    try {
      const query = await change("POST", `/trails/${encodeURIComponent(id)}/cancel`);
      notice(query.cancel_asked ? "The question is told to end." : `It has ended already: ${query.state}.`, "info");
    } catch (error) {
      notice(error.message, "error");
    }
    this.history.load();
  }

  leave() {
    clearTimeout(this.timer);
  }
}

function write(id) {
  const hash = `#query=${id}`;
  if (hash !== location.hash) history.replaceState(null, "", location.pathname + location.search + hash);
  tellOuter();
}

async function start() {
  try {
    const names = await ask("/names");
    const asking = new Asking(names.pipelines);
    addEventListener("popstate", () => asking.follow());
    tellOuter();
    await asking.show();
  } catch (error) {
    fill(page, problem(error, start));
  } finally {
    page.removeAttribute("aria-busy");
  }
}

followTheme();
start();
