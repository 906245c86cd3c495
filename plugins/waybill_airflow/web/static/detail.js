// One partition: what its error means, its numbers, what can be done, its runs and its events.

import { hashOf, read, write } from "./address.js";
import { actionBar, release } from "./actions.js";
import { ask, offers } from "./client.js";
import { fill, h, icon, redraw } from "./dom.js";
import { canShowEvents, Events } from "./events.js";
import { stageClass, waiting } from "./list.js";
import { EMPTY, named } from "./names.js";
import { problem } from "./notices.js";
import { refusal, summary } from "./permissions.js";
import { Runs } from "./runs.js";
import { ago, count, many, percent, plain, size, time } from "./words.js";

const AGAIN_MS = 5_000;
const CAUSES = { version: "a new version of the pipeline is deployed", destination: "the destination is healthy again", any: "a new version is deployed, or the destination is healthy again" };

const STANDINGS = { running: "running", moving: "running", done: "done", "parked again": "warned", "no next step": "warned" };
const NO_NEXT_STEP = "No further step of the canary has begun: it stopped here, or waits to see what becomes of these events";
const FATES = [
  ["delivered", "delivered"], ["superseded", "superseded"], ["duplicate", "duplicates"], ["parked", "parked again"], ["held", "waiting, as the pipeline was held"],
  ["moving", "on their way"], ["passed_on", "passed on: not loaded yet, or filtered"],
];

/** The view of one partition; `world` has me and titles. */
export class Detail {
  constructor(page, world, id) {
    this.page = page;
    this.world = world;
    this.me = world.me;
    this.id = id;
    this.runs = new Runs(id, () => this.reload());
    this.top = h("div", {});
    this.bottom = h("div", {});
    this.history = h("div", {});
    this.events = null;
    this.timer = 0;
    this.left = false;
  }

  /** The fingerprint that is chosen, or "". */
  fingerprint() {
    return read().fingerprint;
  }

  /** Draw, and ask for the partition. */
  async show() {
    fill(this.page, this.back(), fill(this.top, waiting()), this.runs.element, this.bottom, this.history);
    scrollTo(0, 0);
    await this.reload();
    this.runs.show();
  }

  /** Stop following; another view is shown. */
  leave() {
    this.left = true;
    clearTimeout(this.timer);
    this.runs.leave();
  }

  /** Ask for the numbers anew; events are read again when there are others now. */
  async reload() {
    clearTimeout(this.timer);
    try {
      const partition = await ask(`/partitions/${encodeURIComponent(this.id)}`);
      if (!this.left) this.draw(partition);
    } catch (error) {
      if (!this.left) fill(this.top, problem(error, () => this.reload()));
    }
  }

  draw(partition) {
    const before = this.partition;
    this.partition = partition;
    document.title = `${partition.pipeline} / ${partition.event_name || EMPTY} · Parked events`;
    redraw(this.top, () => fill(this.top, this.head(partition), this.hold(partition), this.meaning(partition), this.numbers(partition), actionBar(partition, this), this.auto(partition)));
    fill(this.history, replays(partition.replays ?? []));
    this.drawEvents(partition, before);
    if (partition.replaying > 0 || (partition.replays ?? []).some((one) => one.standing === "moving")) this.timer = setTimeout(() => this.reload(), AGAIN_MS);
  }

  drawEvents(partition, before) {
    if (!canShowEvents()) return;
    if (!this.events) {
      this.events = new Events(partition, this.fingerprint(), (fingerprint) => write({ ...read(), fingerprint }));
      fill(this.bottom, this.events.element);
      this.events.show();
      return;
    }
    this.events.update(partition);
    if (before && (before.parked !== partition.parked || before.replaying !== partition.replaying)) this.events.load();
  }

  back() {
    const href = hashOf({ ...read(), id: "", fingerprint: "" });
    return h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: href === "#" ? "#sort=last_parked_at" : href }, icon("back"), "Parked events"));
  }

  head(partition) {
    const known = this.world.titles.get(partition.error_type);
    const transient = partition.transient ?? known?.transient;
    const may = summary(this.me);
    return h(
      "header", { class: "head detail-head" },
      h("div", {},
        h("h1", { tabindex: "-1" }, partition.title ?? known?.title ?? plain(partition.error_type)),
        h("p", { class: "identity" }, h("span", { class: `stage ${stageClass(partition.stage)}` }, partition.stage), h("code", {}, partition.error_type),
          h("span", {}, pipelineName(partition), " / ", h("strong", {}, named(partition.event_name))), h("span", { class: "muted" }, `team ${partition.team || "(none)"}`),
          transient !== undefined && h("span", { class: "kind", title: transient ? "The same event may pass later with nothing changed" : "It fails again until something is changed" }, transient ? "transient" : "permanent")),
        may && h("p", { class: "may" }, may)),
      h("button", { type: "button", class: "button icon-only", "aria-label": "Refresh", title: "Refresh", onclick: () => this.reload() }, icon("refresh")),
    );
  }

  hold(partition) {
    const { hold } = partition;
    if (!hold) return null;
    const may = refusal(this.me, "replay", partition.team);
    return h(
      "div", { class: "callout warning", role: "status" }, icon("hold"),
      h("div", {}, holdWords(partition, hold)),
      offers("POST", "/pipelines/{}/release") && h("span", { class: "with-why" },
        h("button", { type: "button", class: "button", "data-action": "release", "aria-disabled": may ? "true" : null, "aria-describedby": may ? "why-release" : null, onclick: may ? null : () => release(partition, this) }, "Release"),
        may && h("span", { class: "why", role: "tooltip", id: "why-release" }, may)),
    );
  }

  meaning(partition) {
    const known = this.world.titles.get(partition.error_type);
    const isOver = !(partition.parked || partition.replaying || partition.quarantined);
    const advice = isOver ? "Nothing: no event is parked here any more." : (partition.advice ?? known?.advice);
    return advice && h("div", { class: "callout" }, icon("info"), h("div", {}, h("p", {}, h("strong", {}, "What to do. "), advice), partition.last_message && h("p", { class: "last" }, "Last message: ", h("span", { class: "message" }, partition.last_message))));
  }

  numbers(partition) {
    const rows = [
      ["waiting", count(partition.parked), size(partition.bytes), partition.parked ? "strong" : ""],
      partition.replaying > 0 && ["replaying", count(partition.replaying), "on their way"],
      ["replayed", count(partition.replayed), "ever"], ["discarded", count(partition.discarded), "ever"],
      partition.quarantined > 0 && ["quarantined", count(partition.quarantined), "damaged, set aside"],
      ["event times", time(partition.first_event_at, { seconds: false }), `to ${time(partition.last_event_at, { seconds: false })}`, "wide"],
      ["parked", ago(partition.last_parked_at), `first ${time(partition.first_parked_at, { seconds: false })}`, "wide"],
    ].filter(Boolean);
    return h("dl", { class: "numbers" }, rows.map(([name, value, more, look]) => h("div", { class: look ?? "", "data-number": name }, h("dt", {}, name), h("dd", {}, value), h("dd", { class: "sub" }, more))));
  }

  auto(partition) {
    const { auto_replay: set } = partition;
    if (!set) return null;
    const tried = set.tried_at ? ` Last tried ${ago(set.tried_at)}.` : "";
    return h("p", { class: "auto" }, icon("auto"), h("span", {}, h("strong", {}, "Auto-replay is on: "), `when ${CAUSES[set.on_change] ?? plain(set.on_change)}${set.asked_by ? `, set by ${set.asked_by}` : ""}.${tried}`));
  }
}

/** Its pipeline, with the way to its balance; what nobody deployed has none. */
function pipelineName({ pipeline, pipeline_id: id, team }) {
  const name = h("strong", {}, pipeline);
  return team ? h("a", { href: `balance#${new URLSearchParams({ pipeline: id })}`, title: `The balance of ${pipeline}` }, name) : name;
}

function holdWords(partition, hold) {
  const { cause } = hold;
  const since = h("span", {}, `Since ${time(hold.held_at)} UTC its events wait as they came. `);
  const title = h("strong", {}, `${partition.pipeline} is held. `);
  if (cause.kind === "by hand") return h("p", {}, title, since, `${hold.held_by} held it: ${cause.why}. It goes on when somebody releases it.`);
  const share = cause.events ? `${count(cause.failed)} of ${many(cause.events, "event")}` : "Too many events";
  const tried = hold.probes ? ` (${many(hold.probes, "probe")} so far, the last ${hold.last_probe?.outcome ?? "not finished"})` : "";
  return [
    h("p", {}, title, `${share} would have parked for one cause, in ${cause.stage}: `, h("code", {}, cause.error_type), "."),
    cause.message && h("p", { class: "last" }, "Message: ", h("span", { class: "message" }, cause.message)),
    h("p", {}, since, `They go on by themselves once a probe passes${tried}.`),
  ];
}

function replays(rows) {
  if (!rows.length) return null;
  const head = ["State", "Started", "By", "Events", "Sent", "What became of them", "Which"].map((text, index) => h("th", { scope: "col", class: index === 3 || index === 4 ? "number" : "" }, text));
  return h(
    "section", { class: "history", "aria-label": "Replays" }, h("h2", {}, "Replays so far"),
    h("div", { class: "table-frame", role: "group", "aria-label": "Table of replays", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map(replayRow)))),
  );
}

function fates(became) {
  const said = FATES.filter(([name]) => became[name]).map(([name, words]) => `${count(became[name])} ${words}`);
  return said.join(", ") || h("span", { class: "muted" }, "nothing heard yet");
}

function replayRow(one) {
  const standing = one.standing ?? one.state;
  const edges = one.since || one.until ? `${one.since ? time(one.since, { seconds: false }) : "first"} – ${one.until ? time(one.until, { seconds: false }) : "last"}` : "";
  const which = [edges, one.fingerprint && `kind ${one.fingerprint.slice(0, 8)}`, one.max_events && `at most ${count(one.max_events)}`, one.step && `canary ${one.step}`].filter(Boolean).join(", ");
  return h(
    "tr", {},
    h("td", {}, h("span", { class: `state ${STANDINGS[standing] ?? ""}`, title: standing === "no next step" ? NO_NEXT_STEP : null }, standing)), h("td", { title: `${time(one.started_at)} UTC` }, ago(one.started_at)), h("td", {}, one.requested_by),
    h("td", { class: "number" }, count(one.events)), h("td", { class: "number" }, `${count(one.sent)} (${percent(one.sent, one.events)})`), h("td", {}, fates(one.became ?? {})), h("td", {}, which || "all"),
  );
}
