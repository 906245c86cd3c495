// Stop, start and replace a cluster's applications: buttons, and the dialog of each.

import { change } from "./client.js";
import { openForm, textField } from "./dialogs.js";
import { h, icon } from "./dom.js";
import { notice } from "./notices.js";

const ACTIONS = {
  restart: {
    text: "Restart", mark: "refresh", intro: "Its applications are replaced by new ones, with settings and code as they are now. Their teams' events wait meanwhile, some seconds.",
    done: (result) => (result.changed ? `${result.applications.join(" and ")} start anew.` : "No application runs."),
  },
  stop: {
    text: "Stop", mark: "stop", danger: true, intro: "Its applications end, and stay so until somebody starts them. The events of all its teams wait meanwhile; nothing is lost.",
    done: (result) => (result.changed ? "Its applications end." : "They were to be stopped already."),
  },
  start: { text: "Start", mark: "replay", intro: "Its applications run again.", done: (result) => (result.changed ? "Its applications start." : "They were to run already.") },
};

/** Return the buttons for a cluster; null for who may not use them. */
export function clusterActions(cluster, reload) {
  if (!cluster.may_operate) return null;
  const stopped = cluster.applications.length > 0 && cluster.applications.every((one) => one.wanted === "stopped");
  const names = stopped ? ["start"] : ["restart", "stop"];
  return h("div", { class: "actions", role: "toolbar", "aria-label": `Applications of ${cluster.name}` }, names.map((name) =>
    h("button", { type: "button", class: "button", "data-act": name, onclick: () => run(name, cluster, reload) }, icon(ACTIONS[name].mark), ACTIONS[name].text)));
}

async function run(name, cluster, reload) {
  const { text, intro, danger, done } = ACTIONS[name];
  const result = await openForm({
    title: `${text}: ${cluster.name}`, intro, danger, action: text,
    fields: [textField("why", "Why", { note: "It goes to the audit log, with your name" })],
    send: (body) => change("POST", `/clusters/${encodeURIComponent(cluster.name)}/${name}`, body),
  });
  if (!result) return;
  notice(`${cluster.name}: ${done(result)}`);
  await reload();
}
