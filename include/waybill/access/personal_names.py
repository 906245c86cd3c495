"""Which payload fields are likely personal, by their names: to be masked until somebody declares.

A guess for names in English: it says nothing of what stands in texts, and never unmasks anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from waybill.mappings import plain_name

Path = tuple[str, ...]
_MOST_FIELDS = 100
_MOST_LEVELS = 16
_ALONE = frozenset(
    "email emails mail phone telephone mobile cellphone fax ssn passport birth birthday birthdate"
    " dob surname firstname lastname fullname forename username address addresses street iban"
    " password gender nationality".split()
)
"""Words that make a name personal wherever they stand in it."""
_TOGETHER = frozenset(
    "first_name last_name full_name given_name family_name middle_name maiden_name e_mail"
    " social_security national_id tax_id card_number license_number licence_number postal_code"
    " post_code zip_code".split()
)
"""Words that do so side by side."""
_PEOPLE = frozenset(
    "account author buyer cardholder client contact customer driver employee guest holder member"
    " owner passenger patient payee payer person pilot recipient rider sender seller student user"
    " visitor".split()
)
"""Who has a personal ``name``."""
_OF_A_FACT = frozenset(
    "at bounced confirmed count enabled format sent status type verified".split()
)
"""Last words of what is said about such a field: ``email_verified``, ``phone_type``."""
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,+-]{4,40}Z?", re.ASCII)


def likely_personal(payloads: Iterable[Any]) -> list[Path]:
    """Return the paths of fields that are likely personal, in the order in which they are met.

    Args:
        payloads: rows or events; what is null in all of them is not returned.

    At most 100, down to 16 levels; of an object that is personal, nothing inside it. Items of a
    list have the list's path. Cost: some µs a payload.
    """
    found: dict[Path, None] = {}
    for payload in payloads:
        for path in _personal_within(payload, (), _MOST_LEVELS):
            if len(found) >= _MOST_FIELDS:
                return list(found)
            found[path] = None
    return list(found)


def personal_or_likely(declared: Sequence[str] | None, payload: Any) -> Sequence[str]:
    """Return the personal fields of a payload: as declared; None: those that likely are."""
    return [".".join(path) for path in likely_personal([payload])] if declared is None else declared


def anonymous(value: Any) -> Any:
    """Return a value of JSON, however deep, in which letters are x, digits 1, and numbers 1.

    Text keeps its length and punctuation, and a time its form, so that code which takes them apart
    still does; what is true, false or null stays.
    """
    if isinstance(value, list):
        return [anonymous(item) for item in value]
    if isinstance(value, dict):
        return {name: anonymous(item) for name, item in value.items()}
    if isinstance(value, str):
        letter = None if _TIME.fullmatch(value) else "x"
        return "".join("1" if c.isdigit() else letter or c if c.isalpha() else c for c in value)
    return value if value is None or isinstance(value, bool) else 1


def _personal_within(value: Any, path: Path, levels: int) -> Iterator[Path]:
    if levels == 0:
        return
    if isinstance(value, list | tuple):
        for item in value:
            yield from _personal_within(item, path, levels - 1)
    for name, item in value.items() if isinstance(value, dict) else ():
        if not isinstance(name, str) or item is None or isinstance(item, bool):
            continue
        if _is_personal(path[-1] if path else "", name):
            yield (*path, name)
        elif isinstance(item, dict | list | tuple):
            yield from _personal_within(item, (*path, name), levels - 1)


@lru_cache(maxsize=4096)
def _is_personal(parent: str, name: str) -> bool:
    words = plain_name(name).split("_")
    if words[-1] in _OF_A_FACT or words[0] in {"is", "has"}:
        return False
    if not _TOGETHER.isdisjoint(_pairs(words)):
        return True
    if not _ALONE.isdisjoint(words):
        return words[-1] != "id" or "email" in words  # address_id is a reference
    return words[-1] == "name" and not _PEOPLE.isdisjoint([*plain_name(parent).split("_"), *words])


def _pairs(words: Sequence[str]) -> list[str]:
    return [f"{first}_{second}" for first, second in pairwise(words)]
