"""What all parts of the settings are."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen; a name that there is not is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
