"""YAML to plain values, with the line of each.

The values are those of YAML 1.2: only ``true`` and ``false`` are booleans (``no`` and ``on`` are
text), numbers are decimal, dates are text. Keys are text. Refused, because each hides a surprise:
duplicate keys, tags, merge keys, several documents, depth over 50, aliases that swell or turn in a
circle.

Parsing is iterative until the depth is known: libyaml's composer recurses in C and would end the
interpreter on ``[[[[...``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from waybill.nearest_name import shown_name
from waybill.pipelines.problems import Path

MAX_DEPTH = 50
MAX_VALUES = 200_000
_BASE: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_WORDS = frozenset({"true", "false", "null"})


class _Loader(_BASE):  # type: ignore[misc,valid-type]
    """Resolves scalars as YAML 1.2 does."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}


_Loader.add_implicit_resolver(_PREFIX + "null", re.compile(r"(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver(_PREFIX + "bool", re.compile(r"(?:true|false)$"), ["t", "f"])
_Loader.add_implicit_resolver(
    _PREFIX + "int", re.compile(r"[-+]?[0-9]{1,40}$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _PREFIX + "float",
    re.compile(r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?$"),
    list("-+.0123456789"),
)
_SCALARS: dict[str, Callable[[str], Any]] = {
    _PREFIX + "str": str,
    _PREFIX + "int": int,
    _PREFIX + "float": float,
    _PREFIX + "bool": lambda text: text == "true",
    _PREFIX + "null": lambda _text: None,
}


@dataclass(slots=True)
class Document:
    """A YAML file's values, the line of each, and what is wrong with the YAML itself."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[tuple[int, Path, str]] = field(default_factory=list)
    """(line, place, message)."""

    def line(self, path: Path) -> int:
        """Return the line of a value, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(text: str) -> Document:
    """Parse one YAML document; never raises for what the text holds."""
    document = Document()
    try:
        if _too_deep(text):
            document.faults.append((1, (), f"expected at most {MAX_DEPTH} levels; found more"))
            return document
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        document.faults.append(_not_yaml(error))
    except UnicodeError as error:
        document.faults.append((1, (), f"expected UTF-8 text; found {shown_name(str(error))}"))
    else:
        if node is not None:
            document.value = _Reader(document).read(node, ())
    return document


def yaml_text(text: str) -> str:
    """Return a text as a YAML value: plain where that is safe, else quoted."""
    if _PLAIN.fullmatch(text) and text not in _WORDS:
        return text
    quoted = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=2**31)
    return str(quoted).strip()


def _too_deep(text: str) -> bool:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            return True
    return False


def _not_yaml(error: yaml.YAMLError) -> tuple[int, Path, str]:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    context = getattr(error, "context", None)
    said = f"{problem} {context}" if context else str(problem)
    begins = getattr(error, "context_mark", None)
    if context and mark and begins and begins.line != mark.line:
        said += f", which begins in line {begins.line + 1}"
        if "quoted scalar" in context:  # its end is that of the file
            said, mark = f"{said}; a quote is not closed", begins
    if "alias" in said:
        said += " (text that begins with * goes in quotes)"
    return (mark.line + 1 if mark else 1, (), f"expected YAML; {said}")


class _Reader:
    """Turns nodes into values; notes lines and faults in a document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: set[int] = set()
        self._left = MAX_VALUES

    def read(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self._document.lines.setdefault(path, line)
        self._left -= 1
        if self._left < 0 or id(node) in self._open:
            if self._left >= -1:
                said = "expected a plain document; found aliases that swell or turn in a circle"
                self._document.faults.append((line, path, said))
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line, path)
        self._open.add(id(node))
        try:
            return self._collection(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, line: int, path: Path) -> Any:
        make = _SCALARS.get(node.tag)
        try:
            if make is not None:
                return make(node.value)
        except ValueError:  # an explicit tag on text of another kind: !!int x
            make = None
        said = f"expected a value without a tag; found {shown_name(node.tag)}"
        self._document.faults.append((line, path, said))
        return None

    def _collection(self, node: yaml.Node, path: Path) -> Any:
        if node.tag not in (_PREFIX + "map", _PREFIX + "seq"):
            said = f"expected a value without a tag; found {shown_name(node.tag)}"
            self._document.faults.append((node.start_mark.line + 1, path, said))
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: yaml.Node, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                said = "expected text as a key; found a list or mapping"
                self._document.faults.append((line, path, said))
                continue
            key = str(key_node.value)
            place = (*path, key)
            if key == "<<":
                said = "expected the fields themselves; found a merge key (<<), which is not taken"
                self._document.faults.append((line, place, said))
            elif key in values:
                first = self._document.lines.get(place, line)
                said = f"expected each key once; found {shown_name(key)!r} also in line {first}"
                self._document.faults.append((line, place, said))
            else:
                self._document.lines.setdefault(place, line)
                values[key] = self.read(value_node, place)
        return values
