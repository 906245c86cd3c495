"""What users ask for, as one frozen value from the edge to the last package.

A request is a pydantic model: options of the command line, parameters of HTTP routes and params of
DAGs are made from its fields, so that a name, a default, a limit and its help are written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from waybill.errors import InputError


class Request(BaseModel):
    """Base of all requests: frozen, unknown fields are refused, errors do not quote values."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the request with these fields; ``None`` counts as not given.

        Raises:
            InputError: a field is missing, unknown or wrong; names it and says why.
        """
        given = {name: value for name, value in values.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise InputError(f"{field}: {first['msg'][0].lower()}{first['msg'][1:]}") from None
