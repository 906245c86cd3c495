"""Keys and passwords of the stack: drawn once, kept in ``<home>/credentials.json`` (0600)."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from waybill.errors import InputError
from waybill.stack import state_folder

FILE = "credentials.json"


@dataclass(frozen=True)
class Credentials:
    """Everything secret that the stack's services share."""

    s3_access_key: str
    s3_secret_key: str
    airflow_password: str
    airflow_fernet_key: str
    airflow_jwt_secret: str
    airflow_secret_key: str

    def __repr__(self) -> str:
        return "Credentials(...)"


def read_or_draw(home: Path) -> Credentials:
    """Return the stack's credentials; what is not there yet is drawn and stored.

    Raises:
        InputError: the file is not what was written.
    """
    path = home / FILE
    stored = _read(path)
    known = _completed(stored)
    if asdict(known) != stored:
        state_folder.write_private(path, json.dumps(asdict(known), indent=1) + "\n")
    return known


def read(home: Path) -> Credentials:
    """Return the stack's credentials for looking at it; what is not there opens nothing."""
    try:
        return _completed(_read(home / FILE))
    except InputError:
        return _draw()


def _completed(stored: dict[str, str]) -> Credentials:
    return Credentials(**{**asdict(_draw()), **stored})


def _read(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error}). `waybill down --wipe` draws new keys"
        ) from error
    names = {f.name for f in fields(Credentials)}
    return {name: value for name, value in stored.items() if name in names}


def _draw() -> Credentials:
    return Credentials(
        s3_access_key=secrets.token_hex(10).upper(),
        s3_secret_key=secrets.token_hex(20),
        airflow_password=secrets.token_urlsafe(12).replace("-", "x").replace("_", "y"),
        airflow_fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        airflow_jwt_secret=secrets.token_hex(48),
        airflow_secret_key=secrets.token_hex(32),
    )
