// Who may do what: "" when the signed-in user may, else the reason in words. The server decides all
// the same; this only keeps the page from offering what it would refuse.

const MAY = {
  replay: "replay parked events",
  discard: "discard parked events",
  download: "download parked events",
  personal: "see personal data",
};

/** Return why a user may not use a permission on a team's partition; "" when they may. */
export function refusal(me, permission, team) {
  if (!me.permissions.includes(permission)) {
    return `You lack the permission “${permission}”: you may not ${MAY[permission]}. Ask whoever runs Waybill for a grant.`;
  }
  if (!mayFor(me, permission, team)) {
    return `You may not ${MAY[permission]} of the team ${team || "(none)"}: your permission “${permission}” is for other teams.`;
  }
  return "";
}

/** Tell whether a user has a permission for a team. */
export function mayFor(me, permission, team) {
  if (me.by_team) return (me.everywhere ?? []).includes(permission) || (me.by_team[team] ?? []).includes(permission);
  return me.teams === "all" || me.teams.includes(team);
}

/** Return one sentence with all that the user may not do; "" when there is nothing. */
export function summary(me) {
  const lacking = Object.keys(MAY).filter((name) => name !== "personal" && !me.permissions.includes(name));
  if (!lacking.length) return "";
  const words = lacking.length > 1 ? `${lacking.slice(0, -1).join(", ")} or ${lacking.at(-1)}` : lacking[0];
  return `You may look, but not ${words}.`;
}
