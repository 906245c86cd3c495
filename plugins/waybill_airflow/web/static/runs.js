// Runs that this page started, followed live until they end. They are kept for the tab, so that a
// reload goes on following them; the runs themselves need no page.

import { openInAirflow } from "./address.js";
import { ask, offers } from "./client.js";
import { fill, h, icon } from "./dom.js";
import { hasEnded, progressWords, runWords } from "./outcomes.js";
import { duration } from "./words.js";

const KEPT = "waybill-runs";
const MOST_KEPT = 30;
const FIRST_MS = 700;
const SLOWEST_MS = 5_000;
const TITLES = { dry_run: "Dry run", replay: "Replay" };

/** The panel with a partition's runs. `onended` is called once for each run that ends. */
export class Runs {
  constructor(partitionId, onended) {
    this.partitionId = String(partitionId);
    this.onended = onended;
    this.element = h("section", { class: "runs", "aria-label": "Runs", "aria-live": "polite" });
    this.timers = new Set();
    this.left = false;
  }

  /** Show the runs that this tab remembers. */
  show() {
    for (const kept of remembered().filter((one) => one.partition === this.partitionId)) this.add(kept);
  }

  /** Follow a run that was just asked for. */
  follow(kind, started) {
    const kept = { kind, partition: this.partitionId, dag_id: started.dag_id, run_id: started.run_id, asked_at: Date.now() };
    if (started.already && this.element.querySelector(`[data-run="${CSS.escape(kept.run_id)}"]`)) return;
    remember([...remembered().filter((one) => one.run_id !== kept.run_id), kept]);
    this.add(kept);
  }

  /** Stop asking; the view is left. */
  leave() {
    this.left = true;
    for (const timer of this.timers) clearTimeout(timer);
  }

  add(kept) {
    const body = h("div", { class: "run-body" }, h("p", {}, "Asked for."));
    const state = h("span", { class: "state queued" }, "queued");
    const open = () => openInAirflow(`dags/${encodeURIComponent(kept.dag_id)}/runs/${encodeURIComponent(kept.run_id)}`);
    const close = () => {
      remember(remembered().filter((one) => one.run_id !== kept.run_id));
      card.remove();
      kept.closed = true;
    };
    const card = h(
      "article", { class: "run", "data-run": kept.run_id, "data-kind": kept.kind },
      h("header", {}, state, h("h3", {}, TITLES[kept.kind] ?? kept.kind), h("button", { type: "button", class: "link", onclick: open }, "Open the run", icon("open")),
        h("button", { type: "button", class: "button icon-only quiet", "aria-label": "Hide this run", onclick: close }, icon("close"))),
      body,
    );
    this.element.prepend(card);
    if (offers("GET", "/runs/{}/{}")) this.look(kept, { state, body }, FIRST_MS);
  }

  async look(kept, parts, waitMs) {
    if (this.left || kept.closed) return;
    let next = Math.min(SLOWEST_MS, waitMs * 1.3);
    try {
      const run = await ask(`/runs/${encodeURIComponent(kept.dag_id)}/${encodeURIComponent(kept.run_id)}`);
      this.draw(kept, parts, run);
      if (hasEnded(run.state)) {
        if (!kept.ended) this.ended(kept, run);
        return;
      }
    } catch (error) {
      fill(parts.body, h("p", {}, error.message));
      if (error.status === 404 || error.status === 403) return;
      next = SLOWEST_MS;
    }
    const timer = setTimeout(() => this.look(kept, parts, next), waitMs);
    this.timers.add(timer);
  }

  ended(kept, run) {
    remember(remembered().map((one) => (one.run_id === kept.run_id ? { ...one, ended: true } : one)));
    if (!this.left) this.onended(kept, run);
  }

  draw(kept, parts, run) {
    fill(parts.state, run.state ?? "queued");
    parts.state.className = `state ${/^[a-z_]+$/.test(run.state ?? "") ? run.state : "queued"}`;
    if (hasEnded(run.state)) {
      fill(parts.body, runWords(kept.kind, run), took(run));
      return;
    }
    const words = progressWords(kept.kind, run, (Date.now() - kept.asked_at) / 1000);
    const { events, sent } = run.progress ?? {};
    fill(parts.body, h("p", {}, words), run.started_at && h("progress", { max: events || 1, value: events ? sent : null, "aria-label": words }));
  }
}

function took(run) {
  if (!run.started_at || !run.finished_at) return null;
  return h("p", { class: "muted" }, `It took ${duration((new Date(run.finished_at) - new Date(run.started_at)) / 1000)}.`);
}

function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  } catch {
    return [];
  }
}

function remember(runs) {
  sessionStorage.setItem(KEPT, JSON.stringify(runs.slice(-MOST_KEPT)));
}
