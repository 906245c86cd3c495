"""docker-compose.yaml, read as compose reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[2] / "docker-compose.yaml"
# ${NAME}, ${NAME:?message}, ${NAME:-default}; $$ is a dollar sign.
VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?P<rest>:[-?][^}]*)?\}")


def load() -> dict[str, Any]:
    """Return the file's content, as a new one each time."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return document


SERVICES: dict[str, Any] = load()["services"]


def interpolated(text: str, values: dict[str, str]) -> str:
    """Return what compose makes of a value."""

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        rest = found["rest"] or ""
        default = rest[2:] if rest.startswith(":-") else ""
        return values.get(found["name"]) or default

    return VARIABLE.sub(replace, text)
