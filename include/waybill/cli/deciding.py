"""What all commands take that decide something: who decided, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from waybill.access import Decision

Why = Annotated[str, typer.Option(help="The reason, for the audit log.", show_default=False)]
Who = Annotated[str | None, typer.Option(help="Your name, if not the system user's.")]


def decision(who: str | None, why: str = "") -> Decision:
    """Return a decision of the system user, or of whom they name: the audit log has both."""
    from waybill.access import Decision
    from waybill.services import current_user

    user = current_user()
    return Decision(who or user, why, system_user=user)
