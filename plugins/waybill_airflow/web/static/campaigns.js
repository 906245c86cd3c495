// Campaigns, above the list: those at work, how far each is; pause, resume, cancel. And the one that ended
// last, for a day: what became of its events. Those before it may be out of date.

import { ask, change, offers } from "./client.js";
import { openForm, textField } from "./dialogs.js";
import { fill, h, icon } from "./dom.js";
import { notice } from "./notices.js";
import { refusal } from "./permissions.js";
import { ago, count, duration, many, plain } from "./words.js";

const AGAIN_MS = 15_000;
const DAY_MS = 86_400_000;

/** Show the campaigns in `box`, again and again while it is on the page. */
export async function showCampaigns(box, me) {
  if (!offers("GET", "/campaigns")) return;
  try {
    const found = shownOf((await ask("/campaigns")).campaigns);
    const focused = box.contains(document.activeElement) && document.activeElement.dataset.act;
    fill(box, found.map((one) => card(one, me, () => showCampaigns(box, me))));
    if (focused) box.querySelector(`[data-act="${focused}"]`)?.focus();
  } catch {
    fill(box); // the list below says what is wrong
  }
  clearTimeout(box.again);
  box.again = setTimeout(() => box.isConnected && !document.hidden && showCampaigns(box, me), AGAIN_MS);
}

/** Return those at work, and the one that ended last if that was within a day. */
function shownOf(campaigns) {
  const last = campaigns.filter((one) => one.ended_at).toSorted((a, b) => Date.parse(b.ended_at) - Date.parse(a.ended_at))[0];
  const isRecent = last && Date.now() - Date.parse(last.ended_at) < DAY_MS;
  return campaigns.filter((one) => (one.ended_at ? isRecent && one === last : one.state !== "cancelled" || one.unfinished > 0));
}

function card(one, me, reload) {
  const refused = one.teams.map((team) => refusal(me, "replay", team)).find(Boolean) ?? "";
  const button = (name, text, mark, run) => h(
    "button", { type: "button", class: "button", "data-act": `${name} ${one.id}`, "aria-disabled": refused ? "true" : null, title: refused || null, onclick: () => (refused ? notice(refused, "error") : run()) },
    icon(mark), text,
  );
  const toggle = one.state === "paused"
    ? button("resume", "Resume", "replay", () => decide(one, "resume", reload))
    : button("pause", "Pause", "hold", () => decide(one, "pause", reload));
  const notes = Object.entries(one.left_out).map(([reason, number]) => `${count(number)} left out: ${plain(reason)}`);
  if (one.groups_per_run > 1) notes.unshift(`A run replays up to ${count(one.groups_per_run)} groups`);
  if (one.proposed_groups_per_run) notes.unshift(`groups_per_run=${one.proposed_groups_per_run} is proposed: it starts far fewer runs. Cancel this campaign, and begin one with it`);
  return h(
    "section", { class: "callout campaign", "data-campaign": one.id, "aria-label": `Campaign ${one.id}` },
    icon("replay"),
    h("div", {},
      h("strong", {}, `Campaign ${one.id}`), ` of ${one.asked_by} is ${one.state}: ${progress(one)}`,
      h("progress", { max: Math.max(one.groups, 1), value: one.ended, "aria-label": "Groups that have ended" }),
      one.ended_at && h("span", { class: "sub" }, `Ended ${ago(one.ended_at)}; shown for a day, until another ends. \`waybill campaigns list\` has all`),
      notes.length > 0 && h("span", { class: "sub" }, notes.join("; "))),
    one.state !== "cancelled" && !one.ended_at && [toggle, button("cancel", "Cancel", "stop", () => cancel(one, reload))],
  );
}

function progress(one) {
  const parts = [`${count(one.ended)} of ${count(one.groups)} groups ended`];
  if (one.failed) parts.push(`${count(one.failed)} of these failed`);
  parts.push(...became(one));
  if (one.unfinished) parts.push(`${many(one.unfinished, one.groups_per_run > 1 ? "launched group" : "run")} not ended`);
  if (one.rate_per_min) parts.push(`${one.rate_per_min} a minute`);
  if (one.eta_s !== null) parts.push(`${duration(one.eta_s)} left`);
  return parts.join(", ");
}

/** Return what became of a campaign's events so far; of a dry run, what would. */
function became({ id, result }) {
  if (!result) return [`\`waybill campaigns show ${id}\` says what became of its events`];
  const { sent, delivered, parked_again, tried, would_park_again } = result;
  if (tried) return [`${count(would_park_again)} of ${many(tried, "event")} would park again`];
  if (!sent) return [];
  const again = Object.entries(parked_again).map(([stage, number]) => `${count(number)} parked again at ${stage}`);
  return [`${many(sent, "event")} sent back`, `${count(delivered)} delivered`, ...again];
}

async function decide(one, verb, reload) {
  try {
    await change("POST", `/campaigns/${one.id}/${verb}`, {});
  } catch (error) {
    notice(error.message, "error");
  }
  await reload();
}

async function cancel(one, reload) {
  const done = await openForm({
    title: `Cancel campaign ${one.id}?`,
    intro: "No more of its runs are launched, for good. Those that were launched go on to their ends; what was not stays parked.",
    fields: [textField("why", "Why", { note: "It goes to the audit log, with your name", required: false })],
    action: "Cancel the campaign", danger: true,
    send: (given) => change("POST", `/campaigns/${one.id}/cancel`, given),
  });
  if (done) notice(`Campaign ${one.id} is cancelled.`);
  await reload();
}
