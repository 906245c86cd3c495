// What can be done with a partition: buttons, and the dialog of each. A button that cannot be used
// stays in sight and says why.

import { address, change, offers, taken, takes } from "./client.js";
import { h, icon } from "./dom.js";
import { fingerprintField, numberField, oneOf, openForm, pairOf, textField, tick, windowField } from "./dialogs.js";
import { notice } from "./notices.js";
import { discardWords, sentence } from "./outcomes.js";
import { refusal } from "./permissions.js";
import { many } from "./words.js";

const KINDS = [
  [".jsonl.zst", "jsonl.zst", "every byte as parked, compressed; any tool with zstd reads it"],
  [".jsonl", "jsonl", "the same, not compressed"],
  [".csv", "csv", "for a spreadsheet; cells that start with = + - @ are escaped"],
];
const CAUSES = [
  ["any", "either of the two", ""],
  ["version", "a new version of the pipeline is deployed", ""],
  ["destination", "the destination is healthy again", ""],
];

/** Return the bar of buttons for a partition; `desk` has me, runs, reload() and fingerprint(). */
export function actionBar(partition, desk) {
  const buttons = ACTIONS.filter((one) => offers(...one.route) && (one.shown?.(partition) ?? true));
  return h("div", { class: "actions", role: "toolbar", "aria-label": "Actions" }, buttons.map((one) => button(one, partition, desk)));
}

function button(action, partition, desk) {
  const why = refusal(desk.me, action.permission, partition.team) || action.hindered?.(partition) || "";
  const run = () => action.run(partition, desk)?.catch?.((error) => notice(error.message, "error"));
  const inner = h(
    "button",
    { type: "button", class: `button ${why ? "" : action.look ?? ""}`, "data-action": action.name, "aria-disabled": why ? "true" : null, "aria-describedby": why ? `why-${action.name}` : null, onclick: why ? null : run },
    icon(action.icon), action.text,
  );
  return h("span", { class: "with-why" }, inner, why && h("span", { class: "why", role: "tooltip", id: `why-${action.name}` }, why));
}

function waits(partition) {
  return partition.parked > 0 ? "" : "No event waits here.";
}

function free(partition) {
  return partition.replaying > 0 ? "A replay is running here. Wait for its end, or cancel it." : waits(partition);
}

function replayedElsewhere(partition) {
  return partition.stage === "ingestion" && !partition.error_type.startsWith("delivery_")
    ? "Rows that never were events cannot be replayed: fix them at the source." : "";
}

/** Return a partition's forms' fields as far as a route takes them; `made` are [name, field]. */
function fieldsOf(path, made) {
  return made.filter(([name, field]) => field && takes("POST", path, name)).map(([, field]) => field);
}

/** A switch to enter at the transformation, where the pipeline keeps what the events were made from. */
function earlierField(partition) {
  if (!partition.enters_earlier) return null;
  const note = "Sends what they were made from once more, which this pipeline keeps, and refuses events without; off: does so where all of them carry it, else they enter at the mapping";
  const { element, values } = tick("enter", "Enter at the transformation", { note });
  return { element, values: () => ({ enter: values().enter ? "transformation" : null }) };
}

function windowOf(path) {
  return windowField({ byParked: takes("POST", path, "parked_since") });
}

function post(partition, verb, given) {
  const route = `/partitions/{}/${verb}`;
  return change("POST", route.replace("{}", partition.id), taken("POST", route, given));
}

async function tryOut(partition, desk) {
  const started = await openForm({
    title: "Dry run",
    intro: "Runs the pipeline as it is deployed now over these events, and says how many would pass. Nothing is written.",
    fields: fieldsOf("/partitions/{}/dry-run", [
      ["fingerprint", fingerprintField(partition.fingerprints, desk.fingerprint())], ["since", windowOf("/partitions/{}/dry-run")],
      ["enter", earlierField(partition)],
      ["sample", numberField("sample", "Try a sample of so many", { placeholder: "every one", note: "Some of each kind of error; the report says what that means for all" })],
    ]),
    action: "Start the dry run",
    send: (given) => post(partition, "dry-run", given),
  });
  if (started) desk.runs.follow("dry_run", started);
}

async function replay(partition, desk) {
  const started = await openForm({
    title: "Replay",
    intro: `Sends events back into the pipeline, in the order in which they were written. ${many(partition.parked, "event")} ${partition.parked === 1 ? "waits" : "wait"} here. What fails again is parked again.`,
    fields: fieldsOf("/partitions/{}/replay", [
      ["fingerprint", fingerprintField(partition.fingerprints, desk.fingerprint())], ["since", windowOf("/partitions/{}/replay")],
      ["canary", tick("canary", "Begin with a canary", { checked: true, note: "1 %, then 10 %, then all; it stops when too many park again" })],
      ["governed", tick("governed", "Leave room for live traffic", { checked: true, note: "Slows down where live events would wait longer; off: as fast as it goes" })],
      ["enter", earlierField(partition)],
      ["limit", pairOf(numberField("limit", "At most so many events", { placeholder: "all" }), numberField("rate_per_s", "At most so many a second", { placeholder: "no limit" }))],
    ]),
    action: "Start the replay",
    send: (given) => post(partition, "replay", given),
  });
  if (!started) return;
  if (started.already) notice("This replay was asked for already: here is its run.", "info");
  desk.runs.follow("replay", started);
}

async function cancel(partition, desk) {
  const done = await openForm({
    title: "Cancel the replay?",
    intro: "What was sent is on its way and stays so; everything else is parked again. Nothing is lost.",
    fields: [], action: "Cancel the replay", danger: true,
    send: () => change("POST", `/partitions/${partition.id}/cancel`, {}),
  });
  if (!done) return;
  notice(sentence(done.said));
  await desk.reload();
}

async function decide(partition, desk, undo) {
  const words = undo
    ? { title: "Undo a discard", intro: "Discarded events become parked again, as far as no clean-up has deleted them.", action: "Bring them back", path: "/undo-discard" }
    : { title: "Discard events", intro: "Discarded events are not wanted any more and never reach the destination. It can be undone until the clean-up has run.", action: "Discard", path: "/discard" };
  const report = await openForm({
    ...words, danger: !undo,
    fields: [
      !undo && takes("POST", words.path, "fingerprint") && fingerprintField(partition.fingerprints, desk.fingerprint()), windowOf(words.path),
      textField("why", "Why", { note: "It goes to the audit log, with your name", placeholder: undo ? "they are needed after all" : "test data of 3 May" }),
    ],
    send: (given) => change("POST", words.path, taken("POST", words.path, { partition_id: partition.id, ...given })),
  });
  if (!report) return;
  notice(discardWords(report, undo));
  await desk.reload();
}

async function download(partition) {
  const kinds = KINDS.map(([text, kind, note]) => [kind, text, note]);
  await openForm({
    title: "Download",
    intro: "One file with the events that wait here, each with its error.",
    fields: [oneOf("kind", "Kind of file", kinds, "jsonl.zst"), windowField()],
    action: "Download",
    send: async ({ kind, since, until }) => {
      const href = address(`/partitions/${partition.id}/download`, { kind, since, until });
      const link = h("a", { href, download: "" });
      document.body.append(link);
      link.click();
      link.remove();
      return true;
    },
  });
}

async function switchAuto(partition, desk) {
  const path = `/partitions/${partition.id}/auto-replay`;
  if (partition.auto_replay) {
    const off = await openForm({ title: "Turn auto-replay off?", intro: "Events that wait here will wait until somebody decides.", fields: [], action: "Turn it off", send: async () => (await change("DELETE", path)) ?? true });
    if (off) notice("Auto-replay is off.");
  } else {
    const on = await openForm({
      title: "Auto-replay",
      intro: "Replays what waits here by itself once its cause may be gone. It begins with the canary, and stops when too many park again.",
      fields: [oneOf("on_change", "When", CAUSES, "any")], action: "Turn it on",
      send: async (given) => (await change("PUT", path, given)) ?? true,
    });
    if (on) notice("Auto-replay is on.");
  }
  await desk.reload();
}

/** Ask for the reason, and release the hold of a partition's pipeline. */
export async function release(partition, desk) {
  const done = await openForm({
    title: `Release ${partition.pipeline}`,
    intro: "The events that were held go through the pipeline again. If the cause is still there, it is held again.",
    fields: [textField("why", "Why", { note: "It goes to the audit log, with your name" })], action: "Release",
    send: async (given) => (await change("POST", `/pipelines/${encodeURIComponent(partition.pipeline_id)}/release`, given)) ?? true,
  });
  if (!done) return;
  notice(`${partition.pipeline} is released.`);
  await desk.reload();
}

const ACTIONS = [
  { name: "replay", text: "Replay", icon: "replay", look: "solid", permission: "replay", route: ["POST", "/partitions/{}/replay"], hindered: (one) => replayedElsewhere(one) || free(one), run: replay },
  { name: "cancel", text: "Cancel replay", icon: "stop", permission: "replay", route: ["POST", "/partitions/{}/cancel"], shown: (one) => one.replaying > 0 || (one.replays ?? []).some((other) => other.state === "running"), run: cancel },
  { name: "dry-run", text: "Dry run", icon: "flask", permission: "replay", route: ["POST", "/partitions/{}/dry-run"], hindered: (one) => replayedElsewhere(one) || waits(one), run: tryOut },
  { name: "download", text: "Download", icon: "download", permission: "download", route: ["GET", "/partitions/{}/download"], hindered: (one) => (one.parked + one.replaying > 0 ? "" : "No event waits here."), run: download },
  { name: "auto-replay", text: "Auto-replay", icon: "auto", permission: "replay", route: ["PUT", "/partitions/{}/auto-replay"], run: switchAuto },
  { name: "discard", text: "Discard", icon: "trash", look: "danger-outline", permission: "discard", route: ["POST", "/discard"], hindered: waits, run: (one, desk) => decide(one, desk, false) },
  { name: "undo-discard", text: "Undo discard", icon: "undo", permission: "discard", route: ["POST", "/undo-discard"], shown: (one) => one.discarded > 0, run: (one, desk) => decide(one, desk, true) },
];
