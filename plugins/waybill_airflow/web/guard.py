"""Who asks, whether they may, and whether it was they who asked: for every route.

Airflow's session cookie is SameSite=Lax and Airflow has no CSRF token, so a page on another port or
subdomain could send it along. A browser says where a request comes from (Sec-Fetch-Site; Origin in
older ones), and lets a foreign page set no header of its own without asking first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from fastapi import Depends, HTTPException, Path, Request, status

from waybill.access import Access, access_of
from waybill.errors import InputError
from waybill.parking import ParkedGroup
from waybill.settings import Permission
from waybill_airflow.airflow_internals import user_of
from waybill_airflow.web.services import OPENED, parked_events

_SAFE = ("GET", "HEAD")
_HEADER = "x-waybill"


async def signed_in(request: Request) -> BaseUser:
    """Return who asks, as Airflow says; a token that is none is nobody's, which is no 403.

    :raises HTTPException: 401.
    """
    try:
        return await user_of(request)
    except HTTPException as error:
        if error.status_code != status.HTTP_403_FORBIDDEN:
            raise
        raise HTTPException(
            status.HTTP_401_UNAUTHORIZED,
            f"nobody is signed in: {error.detail}",
            headers={"www-authenticate": "Bearer"},
        ) from error


UserDep = Annotated[BaseUser, Depends(signed_in)]


def refuse_foreign(request: Request) -> None:
    """Refuse what another site's page asks for in the name of somebody signed in.

    :raises HTTPException: 403.
    """
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return  # no browser adds this by itself
    site = request.headers.get("sec-fetch-site")
    if request.method in _SAFE:
        if site == "cross-site" and "/api/" in request.url.path:
            raise _foreign("this address answers Airflow's own pages only")
        return
    if request.headers.get(_HEADER) != "1":
        raise _foreign("the header X-Waybill: 1 is missing")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    own = site == "same-origin" if site else bool(origin) and origin == request.headers.get("host")
    if not own:
        raise _foreign("it does not come from Airflow's own pages")


def _foreign(why: str) -> HTTPException:
    return HTTPException(
        status.HTTP_403_FORBIDDEN,
        f"request refused: {why}; ask from Airflow's pages, or with an Authorization header",
    )


def roles_of(user: Any) -> list[str]:
    """Return the names of a user's roles, as far as the auth manager gives users roles."""
    found = [getattr(user, "role", None), *(getattr(user, "roles", None) or ())]
    named = (role if isinstance(role, str) else getattr(role, "name", None) for role in found)
    return [name for name in named if name]


def _access(user: UserDep) -> Access:
    grants = OPENED.settings().access.grants
    return access_of(grants, str(user.get_name()), roles_of(user))


AccessDep = Annotated[Access, Depends(_access)]


def absent(what: str, hint: str = "") -> HTTPException:
    """Return the answer for what is not there, or not to be seen: the two are the same."""
    return HTTPException(status.HTTP_404_NOT_FOUND, f"there is no {what} that you may see{hint}")


def _refused(access: Access, permission: Permission, team: str | None = None) -> HTTPException:
    what = "" if team is None else f" of team {team!r}" if team else " of no team"
    return HTTPException(
        status.HTTP_403_FORBIDDEN,
        f"{access.user!r} has no permission {permission!r} for events{what}; who may do what "
        "is said by the setting WAYBILL_ACCESS__GRANTS",
    )


def require(access: Access, permission: Permission, team: str, missing: HTTPException) -> None:
    """Refuse what a user may not do with something of a team's.

    :param missing: the answer where there is no such thing: see ``absent``.
    :raises HTTPException: 403: they may see it, and may not do this; 404: they may not see it.
    """
    if access.may(permission, team):
        return
    if access.may("view", team):
        raise _refused(access, permission, team)
    raise missing


def require_anywhere(access: Access, permission: Permission) -> None:
    """Refuse what a user may do with no team's events.

    :raises HTTPException: 403.
    """
    if not access.may_anywhere(permission):
        raise _refused(access, permission)


def _anywhere(permission: Permission) -> Callable[..., Access]:
    def allowed(access: AccessDep) -> Access:
        require_anywhere(access, permission)
        return access

    return allowed


@dataclass(frozen=True, slots=True)
class PartitionAccess:
    """A user, and a partition with which they may do what the route does."""

    access: Access
    partition: ParkedGroup

    @property
    def who(self) -> str:
        """Return the user's name, for the audit log."""
        return self.access.user


def partition_access(access: Access, permission: Permission, partition_id: int) -> PartitionAccess:
    """Return a user's access to a partition.

    :raises HTTPException: 403 without the permission; 404: there is no such partition, or it is of
        a team whose partitions the user may not see.
    """
    require_anywhere(access, permission)
    missing = absent(f"parked group {partition_id}")
    try:
        partition = parked_events().partition(partition_id)
    except InputError as error:
        raise missing from error
    require(access, permission, partition.team, missing)
    return PartitionAccess(access, partition)


@dataclass(frozen=True, slots=True)
class PipelineAccess:
    """A user, and a pipeline with which they may do what the route does."""

    access: Access
    pipeline_id: str
    team: str


def no_pipeline(given: str) -> HTTPException:
    """Return the answer for a pipeline that is not there, or not to be seen."""
    return absent(f"pipeline {given[:80]!r}", "; /names gives the ids of those")


PipelineId = Annotated[str, Path(pattern=r"^[^\x00]{1,300}$", description="The pipeline's id.")]


def _at_pipeline(permission: Permission) -> Callable[..., PipelineAccess]:
    def allowed(access: AccessDep, pipeline_id: PipelineId) -> PipelineAccess:
        require_anywhere(access, permission)
        team = parked_events().team(pipeline_id)
        missing = no_pipeline(pipeline_id)
        require(access, permission, team or "", missing)
        if team is None:
            raise missing
        return PipelineAccess(access, pipeline_id, team)

    return allowed


PartitionId = Annotated[
    int, Path(ge=1, lt=2**63, description="The partition's id, as /partitions gives it.")
]


def _at_partition(permission: Permission) -> Callable[..., PartitionAccess]:
    def allowed(access: AccessDep, partition_id: PartitionId) -> PartitionAccess:
        return partition_access(access, permission, partition_id)

    return allowed


Viewer = Annotated[Access, Depends(_anywhere("view"))]
Discarder = Annotated[Access, Depends(_anywhere("discard"))]
PartitionViewer = Annotated[PartitionAccess, Depends(_at_partition("view"))]
PartitionReplayer = Annotated[PartitionAccess, Depends(_at_partition("replay"))]
PipelineReplayer = Annotated[PipelineAccess, Depends(_at_pipeline("replay"))]
PipelineViewer = Annotated[PipelineAccess, Depends(_at_pipeline("view"))]
PartitionDownloader = Annotated[PartitionAccess, Depends(_at_partition("download"))]
