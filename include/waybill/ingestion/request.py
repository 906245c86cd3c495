"""What users ask of a run of ingestion: where it begins, and what it reads again."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from waybill.errors import InputError
from waybill.request import Request

_LONGEST = 200


class IngestRequest(Request):
    """Where a run begins; by default where the last one stopped."""

    model_config = ConfigDict(populate_by_name=True)

    full: bool = Field(default=False, description="Read the source again from its beginning.")
    begin: str | None = Field(
        None,
        alias="from",
        max_length=_LONGEST,
        description="Read it again from this value of its cursor on, as a time or a number.",
    )
    end: str | None = Field(
        None,
        alias="to",
        max_length=_LONGEST,
        description="Read it again up to this value of its cursor and with it; then go on from"
        " where the last run stopped.",
    )
    put_back: bool = Field(
        default=False, description="Go on from where it stood before the last such change."
    )
    why: str | None = Field(
        None,
        max_length=1000,
        description="The reason, for the audit log: must be given with any of these.",
    )
    who: str | None = Field(
        None, max_length=_LONGEST, description="Who asks, if not the user who starts the run."
    )

    @property
    def moves_cursor(self) -> bool:
        """Whether the run is to begin elsewhere than where the last one stopped."""
        return self.full or self.put_back or self.begin is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Raise ``InputError`` where two beginnings are asked for, or no reason is given."""
        if self.full + self.put_back + (self.begin is not None) > 1:
            raise InputError("full, from, put_back: a run has one beginning; give one of them")
        if self.begin is not None and not self.begin.strip():
            raise InputError("from: it is empty; leave it out to go on where the last run stopped")
        if self.end is not None and self.begin is None:
            raise InputError("to: expected from beside it: where the reading again begins")
        if self.end is not None and not self.end.strip():
            raise InputError("to: it is empty; leave it out to read to the end of the source")
        if self.moves_cursor and not (self.why or "").strip():
            raise InputError(
                "why: a reason must be given with full, from and put_back (on the command line:"
                " --why): it goes into the audit log"
            )
        return self
