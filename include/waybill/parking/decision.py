"""Who decided something about parked events, and why: as the audit log keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.parking.moves import words


@dataclass(frozen=True, slots=True)
class Decision:
    """One person's decision.

    Raises:
        InputError: ``who`` is empty.
    """

    who: str
    why: str = ""
    """The reason; empty only where none is asked for."""
    system_user: str | None = None
    """Who ran the process, beside ``who``, which anybody may give; None: they signed in."""

    def __post_init__(self) -> None:
        """Leave out what no audit log holds."""
        object.__setattr__(self, "who", words(self.who, "who"))

    def require_why(self) -> str:
        """Return the reason.

        Raises:
            InputError: there is none.
        """
        return words(self.why, "why")

    def beside_who(self) -> dict[str, str]:
        """Return what an entry of the audit log says of it beside ``who``."""
        return {} if self.system_user is None else {"system_user": self.system_user}
