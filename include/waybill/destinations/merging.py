"""Judging and merging one staged batch: SQL defined once, rendered for a dialect by sqlglot.

Two working tables belong to a batch:
  stage    ``_waybill_n`` (ordinal in the batch), the user's columns, ``_waybill_id``,
           ``_waybill_source_version``, ``_waybill_intake_version``, ``_waybill_op``
  verdict  ``n`` (unique), ``outcome`` (1 superseded, 2 duplicate, 3 parked), ``winner`` (the
           ordinal that a row lost to within the batch), ``touch`` (a duplicate with a later
           intake version)
A staged row without a verdict is delivered, so that a batch of news writes no verdicts at all.

``judge_losers`` gives verdicts within the batch, ``judge_met`` against the target,
``judge_tombstones`` against deleted keys; ``merge`` applies what is left and moves on the versions
of touched rows. The merge is itself guarded by version: a row never goes back, whoever wrote it in
between.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp

from waybill.destinations.batch import DUPLICATE, SUPERSEDED
from waybill.destinations.specs import ITEM
from waybill.pipelines import ChildTable, TableSpec

DELETED_AT = "_waybill_deleted_at"
"""When a soft delete took effect; null: the row lives."""
LOADED_ID = "_waybill_id"
"""The id of the row's event; of each table that loads write to, and of no other."""
KEPT_COLUMNS = (
    (LOADED_ID, "string"),
    ("_waybill_source_version", "int64"),
    ("_waybill_intake_version", "int64"),
    ("_waybill_loaded_at", "timestamp"),
)
"""System columns of a target table, with their types."""
RESERVED_PREFIX = "_waybill_"
_VERSIONS = ["_waybill_id", "_waybill_source_version", "_waybill_intake_version"]
_DEFINED_IN = "postgres"

_SOURCE, _INTAKE = "_waybill_source_version", "_waybill_intake_version"
_TOUCH = "_waybill_touch"
"""Beside a stage's own columns, which may have any name but such."""


def quoted(name: str) -> str:
    """Return an identifier, quoted, in the dialect the statements are defined in."""
    return str(exp.to_identifier(name, quoted=True).sql(_DEFINED_IN))


def literal(text: str) -> str:
    """Return a text literal in the dialect the statements are defined in."""
    return str(exp.Literal.string(text).sql(_DEFINED_IN))


@dataclass(frozen=True)
class MergeStatements:
    """The statements for one staged batch.

    Args:
        spec: the target table.
        stage: name of the stage table; not qualified.
        verdict: name of the verdict table; not qualified.
        dialect: a sqlglot dialect.
        marked: the table has ``_waybill_deleted_at``, whether deletes are soft now or were once.
        items: names of the tables with the items of the spec's children, in their order.
        now: expression for the time; no column can be meant by it.
    """

    spec: TableSpec
    stage: str
    verdict: str
    dialect: str = "postgres"
    marked: bool = False
    items: tuple[str, ...] = ()
    now: str = "CURRENT_TIMESTAMP"

    def find_losers(self, losers: str) -> str:
        """Fill table ``losers`` (n, winner, prev: the next better row) with rows that lost."""
        key = self._names(self.spec.key)
        return self._render(
            f"INSERT INTO {quoted(losers)} (n, winner, prev) SELECT n, winner, prev FROM ("
            "SELECT _waybill_n AS n, FIRST_VALUE(_waybill_n) OVER w AS winner, "
            f"LAG(_waybill_n) OVER w AS prev FROM {quoted(self.stage)} WINDOW w AS (PARTITION BY "
            f"{key} ORDER BY {_SOURCE} DESC, {_INTAKE} DESC, _waybill_n)) AS ranked "
            "WHERE NOT prev IS NULL"
        )

    def judge_losers(self, losers: str) -> str:
        """Give verdicts to ``losers``."""
        alike = (
            f"s.{_SOURCE} = p.{_SOURCE} AND (s.{_INTAKE} = p.{_INTAKE} OR "
            f"(s._waybill_op = p._waybill_op AND (s._waybill_op = 'delete' OR {self._same('p')})))"
        )
        return self._render(
            f"INSERT INTO {quoted(self.verdict)} (n, outcome, winner, touch) "
            f"SELECT l.n, {_outcome(alike)}, l.winner, FALSE FROM {quoted(losers)} AS l "
            f"JOIN {quoted(self.stage)} AS s ON s._waybill_n = l.n "
            f"JOIN {quoted(self.stage)} AS p ON p._waybill_n = l.prev"
        )

    def find_met(self, met: str) -> str:
        """Fill table ``met`` (n) with rows whose source version is not above the target row's.

        Reads keys and versions alone, so that a batch of news never reads the target's columns.
        """
        return self._render(
            f"INSERT INTO {quoted(met)} (n) SELECT s._waybill_n FROM {quoted(self.stage)} AS s "
            f"JOIN {self._target} AS t ON {self._on_key} "
            f"WHERE {self.unjudged} AND s.{_SOURCE} <= t.{_SOURCE}"
        )

    def judge_met(self, met: str) -> str:
        """Give verdicts to rows of ``met`` that are not newer than the target's."""
        content = f"(s._waybill_op = 'upsert' AND {self._same('t')})"
        if self.marked:
            content = (
                f"((s._waybill_op = 'delete') = (NOT t.{DELETED_AT} IS NULL) AND "
                f"(s._waybill_op = 'delete' OR {self._same('t')}))"
            )
        joins = (
            f"JOIN {quoted(met)} AS m ON m.n = s._waybill_n "
            f"JOIN {self._target} AS t ON {self._on_key}"
        )
        return self._render(self._judge(joins, content, "TRUE"))

    def judge_tombstones(self, tombstones: str, key_hash: str) -> str:
        """Give verdicts to rows that are not newer than their key's delete.

        Args:
            tombstones: a table of this target's tombstones (key_hash and versions), qualified.
            key_hash: expression over stage row ``s``.
        """
        join = f"JOIN {tombstones} AS t ON {self._tombstones_of('t', key_hash)}"
        return self._judge(join, "s._waybill_op = 'delete'", self.unjudged)

    def clear_tombstones(self, tombstones: str, key_hash: str) -> str:
        """Remove the tombstones of keys that are rows again."""
        return (
            f"DELETE FROM {tombstones} AS t USING {quoted(self.stage)} AS s "
            f"WHERE {self._tombstones_of('t', key_hash)} AND s._waybill_op = 'upsert' "
            f"AND {self.unjudged}"
        )

    def drop_tombstones(self, tombstones: str, key_hash: str) -> str:
        """Remove the tombstones that ``write_tombstones`` writes anew."""
        return (
            f"DELETE FROM {tombstones} AS t USING {self._effective()} AS s "
            f"WHERE {self._tombstones_of('t', key_hash)} AND s._waybill_op = 'delete'"
        )

    def write_tombstones(self, tombstones: str, key_text: str, key_hash: str) -> str:
        """Keep the key and versions of deletes that took effect, or are newer copies of such.

        One whose row stays, marked, leaves none: the row holds its versions. Where an engine has
        no unique index on tombstones, ``drop_tombstones`` goes before.
        """
        stays = f" AND NOT EXISTS (SELECT 1 FROM {self._target} AS t WHERE {self._on_key})"
        return (
            f"INSERT INTO {tombstones} (table_schema, table_name, key_hash, key, "
            f"_waybill_id, {_SOURCE}, {_INTAKE}, deleted_at) "
            f"SELECT {literal(self.spec.schema_name)}, {literal(self.spec.name)}, {key_hash}, "
            f"{key_text}, s._waybill_id, s.{_SOURCE}, s.{_INTAKE}, {self.now} "
            f"FROM {self._effective()} AS s WHERE s._waybill_op = 'delete'"
            f"{stays if self.spec.soft_delete else ''}"
        )

    def merge(self, *, judged: bool) -> str:
        """Apply what has no verdict; ``judged`` False: nothing has one, so none is looked for."""
        if judged:
            return self._merge(self._effective())
        return self._merge(self._all)

    def merge_news(self) -> str:
        """Apply all but what meets a row of an equal or higher source version."""
        return self._merge(self._all, f"(t.{_SOURCE} IS NULL OR s.{_SOURCE} > t.{_SOURCE})")

    def merge_range(self, low: str, high: str) -> str:
        """Apply what has no verdict, of the ordinals from ``low``, before ``high``: expressions."""
        condition = bounds(low, high)
        return self._merge(self._effective(condition))

    def count_met(self) -> str:
        """Count, as ``rows``, the target's rows whose key is in the stage."""
        return self._render(
            f"SELECT COUNT(*) AS rows FROM {self._target} AS t WHERE EXISTS "
            f"(SELECT 1 FROM {quoted(self.stage)} AS s WHERE {self._on_key})"
        )

    def keys_met(self) -> str:
        """Select the target's keys that are in the stage, as ``k0``, ``k1`` and so on."""
        keys = ", ".join(f"t.{quoted(name)} AS k{n}" for n, name in enumerate(self.spec.key))
        return self._render(
            f"SELECT {keys} FROM {self._target} AS t WHERE EXISTS "
            f"(SELECT 1 FROM {quoted(self.stage)} AS s WHERE {self._on_key})"
        )

    def _merge(self, source: str, newer: str = "") -> str:
        own = [c.name for c in self.spec.columns]
        free = [name for name in own if name not in self.spec.key]
        newer = newer or (
            f"(t.{_SOURCE} IS NULL OR s.{_SOURCE} > t.{_SOURCE} OR "
            f"(s.{_SOURCE} = t.{_SOURCE} AND s.{_INTAKE} > t.{_INTAKE}))"
        )
        versions = _assignments(_VERSIONS)
        touched = f"WHEN MATCHED AND s.{_TOUCH} AND {newer} THEN UPDATE SET {versions} "
        delete = f"WHEN MATCHED AND s._waybill_op = 'delete' AND {newer} THEN "
        revived = f", {DELETED_AT} = NULL" if self.marked else ""
        if self.spec.soft_delete:
            marks = f"{versions}, {DELETED_AT} = {self.now}"
            first = f"{touched}{delete}UPDATE SET {marks} "
        else:
            first = f"{delete}DELETE {touched}"
        inserted = [*own, *_VERSIONS]
        return self._render(
            f"MERGE INTO {self._target} AS t USING {source} AS s ON {self._on_key} "
            f"{first}"
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {_assignments([*free, *_VERSIONS])}, "
            f"_waybill_loaded_at = {self.now}{revived} "
            "WHEN NOT MATCHED AND s._waybill_op = 'upsert' THEN "
            f"INSERT ({self._names(inserted)}, _waybill_loaded_at) "
            f"VALUES ({', '.join(f's.{quoted(name)}' for name in inserted)}, {self.now})"
        )

    def clear_items(self, child: ChildTable, bounds: str = "") -> str:
        """Delete the child rows of keys whose row was replaced, or deleted for good.

        Args:
            child: one of the spec's.
            bounds: further condition over ``s``, with its AND.
        """
        gone = " AND s._waybill_op = 'upsert'" if self.spec.soft_delete else ""
        on_key = " AND ".join(f"s.{quoted(name)} = c.{quoted(name)}" for name in self.spec.key)
        return self._render(
            f"DELETE FROM {self._table(child.name)} AS c WHERE EXISTS "
            f"(SELECT 1 FROM {quoted(self.stage)} AS s "
            f"WHERE {on_key} AND {self.unjudged}{gone}{bounds})"
        )

    def write_items(self, child: ChildTable, items: str, bounds: str = "") -> str:
        """Insert the items of rows that were merged.

        Args:
            child: one of the spec's.
            items: table of the batch's items: ``_waybill_n`` (the row's ordinal),
                ``_waybill_item`` and the child's columns.
            bounds: as for ``clear_items``.
        """
        columns = [c.name for c in child.columns]
        sources = [f"s.{quoted(name)}" for name in self.spec.key]
        sources += [f"i.{quoted(name)}" for name in (ITEM, *columns)]
        sources += [f"s.{name}" for name in _VERSIONS]
        return self._render(
            f"INSERT INTO {self._table(child.name)} "
            f"({self._names([*self.spec.key, ITEM, *columns, *_VERSIONS])}, _waybill_loaded_at) "
            f"SELECT {', '.join(sources)}, {self.now} FROM {quoted(items)} AS i "
            f"JOIN {quoted(self.stage)} AS s ON s._waybill_n = i._waybill_n "
            f"WHERE s._waybill_op = 'upsert' AND {self.unjudged}{bounds}"
        )

    def reopen(self, stage: str) -> str:
        """Fill stage table ``stage`` with the rows that lost only to rows refused since."""
        return self._render(
            f"INSERT INTO {quoted(stage)} SELECT s.* "
            f"FROM {quoted(self.stage)} AS s "
            f"JOIN {quoted(self.verdict)} AS v ON v.n = s._waybill_n "
            f"JOIN {quoted(self.verdict)} AS w ON w.n = v.winner "
            f"WHERE w.outcome = 3 AND v.outcome = {SUPERSEDED}"
        )

    def forget_verdicts(self) -> str:
        """Remove the verdicts of the stage's rows."""
        return self._render(
            f"DELETE FROM {quoted(self.verdict)} WHERE n IN "
            f"(SELECT _waybill_n FROM {quoted(self.stage)})"
        )

    def _judge(self, joins: str, same_content: str, condition: str) -> str:
        """Give verdicts to rows of ``s`` that are not newer than those of ``t``."""
        alike = f"(s.{_INTAKE} = t.{_INTAKE} OR {same_content})"
        duplicate = f"s.{_SOURCE} = t.{_SOURCE} AND {alike}"
        return (
            f"INSERT INTO {quoted(self.verdict)} (n, outcome, winner, touch) "
            f"SELECT s._waybill_n, {_outcome(duplicate)}, NULL, "
            f"({duplicate} AND s.{_INTAKE} > t.{_INTAKE}) "
            f"FROM {quoted(self.stage)} AS s {joins} WHERE {condition} AND "
            f"(s.{_SOURCE} < t.{_SOURCE} OR (s.{_SOURCE} = t.{_SOURCE} AND "
            f"(s.{_INTAKE} <= t.{_INTAKE} OR {same_content})))"
        )

    @property
    def _all(self) -> str:
        """Return all rows of the stage; none is only touched."""
        return f"(SELECT s.*, FALSE AS {_TOUCH} FROM {quoted(self.stage)} AS s)"

    def _effective(self, condition: str = "") -> str:
        """Return the rows to apply, and of each whether it is only touched."""
        return (
            f"(SELECT s.*, COALESCE(v.touch, FALSE) AS {_TOUCH} FROM {quoted(self.stage)} AS s "
            f"LEFT JOIN {quoted(self.verdict)} AS v ON v.n = s._waybill_n "
            f"WHERE (v.n IS NULL OR v.touch){condition})"
        )

    @property
    def unjudged(self) -> str:
        """Return the condition that row ``s`` has no verdict."""
        return f"NOT EXISTS (SELECT 1 FROM {quoted(self.verdict)} AS v WHERE v.n = s._waybill_n)"

    def _tombstones_of(self, alias: str, key_hash: str) -> str:
        return (
            f"{alias}.table_schema = {literal(self.spec.schema_name)} AND "
            f"{alias}.table_name = {literal(self.spec.name)} AND {alias}.key_hash = {key_hash}"
        )

    def _same(self, other: str) -> str:
        free = [c.name for c in self.spec.columns if c.name not in self.spec.key]
        if not free:
            return "TRUE"
        parts = (f"s.{quoted(n)} IS NOT DISTINCT FROM {other}.{quoted(n)}" for n in free)
        return f"({' AND '.join(parts)})"

    @property
    def _target(self) -> str:
        return self._table(self.spec.name)

    def _table(self, name: str) -> str:
        return f"{quoted(self.spec.schema_name)}.{quoted(name)}"

    @property
    def _on_key(self) -> str:
        return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.spec.key)

    def _names(self, names: tuple[str, ...] | list[str]) -> str:
        return ", ".join(quoted(name) for name in names)

    def _render(self, text: str) -> str:
        return str(sqlglot.parse_one(text, read=_DEFINED_IN).sql(self.dialect))


def bounds(low: str, high: str) -> str:
    """Return the condition that keeps to the ordinals from ``low``, before ``high``."""
    return f" AND s._waybill_n >= {low} AND s._waybill_n < {high}"


def _outcome(duplicate: str) -> str:
    return f"CASE WHEN {duplicate} THEN {DUPLICATE} ELSE {SUPERSEDED} END"


def _assignments(names: list[str]) -> str:
    return ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
