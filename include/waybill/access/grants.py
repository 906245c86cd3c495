"""Who may do what with whose parked events: pure decisions over the grants of the settings.

What no grant names is refused. Permissions do not imply each other. A partition of a pipeline that
nobody deployed has no team: only grants for all teams (``*``) reach it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from waybill.settings import PERMISSIONS, Grant, Permission

ROLE = "role:"
EVERYBODY = "*"
ALL_TEAMS = "*"


@dataclass(frozen=True, slots=True)
class Access:
    """What one user may do."""

    user: str
    everywhere: frozenset[Permission]
    """With the parked events of every team, and with those of no team."""
    by_team: Mapping[str, frozenset[Permission]]
    """With one team's, beyond ``everywhere``."""

    def may(self, permission: Permission, team: str) -> bool:
        """Tell whether the user may do this with a team's events; ``""`` is no team."""
        if permission in self.everywhere:
            return True
        return bool(team) and permission in self.by_team.get(team, frozenset())

    def may_anywhere(self, permission: Permission) -> bool:
        """Tell whether there is any team for which the user may do this."""
        return permission in self.everywhere or any(
            permission in granted for granted in self.by_team.values()
        )

    def teams(self, permission: Permission) -> tuple[str, ...] | None:
        """Return the teams for which the user may do this, sorted; None: all, and no team."""
        if permission in self.everywhere:
            return None
        return tuple(sorted(t for t, granted in self.by_team.items() if permission in granted))

    def permissions(self) -> list[Permission]:
        """Return what the user may do for at least one team, in the order of ``PERMISSIONS``."""
        return [permission for permission in PERMISSIONS if self.may_anywhere(permission)]


def access_of(grants: Iterable[Grant], user: str, roles: Collection[str]) -> Access:
    """Return what a user may do: the sum of all grants to the name, to a role, to everybody.

    Args:
        grants: of the settings.
        user: the name as Airflow has it; compared exactly.
        roles: names of the user's roles in Airflow; compared without case.
    """
    folded = {role.casefold() for role in roles}
    everywhere: set[Permission] = set()
    by_team: dict[str, set[Permission]] = {}
    for grant in grants:
        if not _is_meant(grant.who, user, folded):
            continue
        if ALL_TEAMS in grant.teams:
            everywhere.update(grant.permissions)
            continue
        for team in grant.teams:
            by_team.setdefault(team, set()).update(grant.permissions)
    frozen = {team: frozenset(granted) for team, granted in by_team.items() if team}
    return Access(user, frozenset(everywhere), frozen)


def _is_meant(who: str, user: str, roles: Collection[str]) -> bool:
    if who == EVERYBODY:
        return True
    if who.startswith(ROLE):
        return who.removeprefix(ROLE).casefold() in roles
    return who == user


__all__ = ["Access", "access_of"]
