"""Mappings: what an event name becomes in a destination, as declared and as learned from events.

Invariants
  M1  A column's name, once given to a field, is that field's for ever, whatever is declared,
      dropped or met later; two fields never share a column.
  M2  A version that is learned holds every column and every type of the one before it, or wider
      ones; only a deploy that does not name a declared column any more takes it away.
  M3  Two who meet a new field at once add it once: versions are made one after the other.
  M4  What a value is widened to holds all values of the column exactly; no number becomes a float
      that it is not.

Versions are in ``waybill.mappings.versions``, by itself: it needs the tracker, and what maps
payloads on a worker does not.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.mappings.difference import Difference as Difference
    from waybill.mappings.difference import differences as differences
    from waybill.mappings.evolution import ITEM as ITEM
    from waybill.mappings.evolution import Given as Given
    from waybill.mappings.evolution import InForce as InForce
    from waybill.mappings.evolution import LearnedField as LearnedField
    from waybill.mappings.evolution import LearnedFields as LearnedFields
    from waybill.mappings.evolution import item_of as item_of
    from waybill.mappings.evolution import learn as learn
    from waybill.mappings.evolution import row_of as row_of
    from waybill.mappings.evolution import takes_any_item as takes_any_item
    from waybill.mappings.evolution import with_learned as with_learned
    from waybill.mappings.evolution import with_table as with_table
    from waybill.mappings.flattening import decode_path as decode_path
    from waybill.mappings.flattening import encode_path as encode_path
    from waybill.mappings.flattening import fields_of as fields_of
    from waybill.mappings.flattening import flatten as flatten
    from waybill.mappings.flattening import whole_fields as whole_fields
    from waybill.mappings.inference import MixedValues as MixedValues
    from waybill.mappings.inference import mixed_values as mixed_values
    from waybill.mappings.inference import type_of as type_of
    from waybill.mappings.inference import type_of_all as type_of_all
    from waybill.mappings.naming import NameRules as NameRules
    from waybill.mappings.naming import name_fields as name_fields
    from waybill.mappings.naming import plain_name as plain_name
    from waybill.mappings.naming import rules_of as rules_of
    from waybill.mappings.naming import table_name as table_name
    from waybill.mappings.overlay import over as over
    from waybill.mappings.proposals import as_wide_as_seen as as_wide_as_seen
    from waybill.mappings.proposals import key_names as key_names
    from waybill.mappings.proposals import propose as propose
    from waybill.mappings.proposals import propose_key as propose_key
    from waybill.mappings.proposals import propose_version as propose_version
    from waybill.mappings.table_places import TablePlaces as TablePlaces
    from waybill.mappings.versions import MappingVersion as MappingVersion
    from waybill.mappings.versions import history as history
    from waybill.mappings.versions import in_force as in_force
    from waybill.mappings.versions import keep_declared as keep_declared
    from waybill.mappings.versions import learn_once as learn_once
    from waybill.mappings.versions import numbers_in_force as numbers_in_force
    from waybill.mappings.versions import read_marks as read_marks
    from waybill.mappings.versions import read_numbered as read_numbered

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "difference": ["Difference", "differences"],
        "evolution": [
            "Given",
            "ITEM",
            "InForce",
            "LearnedField",
            "LearnedFields",
            "item_of",
            "learn",
            "row_of",
            "takes_any_item",
            "with_learned",
            "with_table",
        ],
        "flattening": ["decode_path", "encode_path", "fields_of", "flatten", "whole_fields"],
        "inference": ["MixedValues", "mixed_values", "type_of", "type_of_all"],
        "overlay": ["over"],
        "naming": ["NameRules", "name_fields", "plain_name", "rules_of", "table_name"],
        "proposals": [
            "as_wide_as_seen",
            "key_names",
            "propose",
            "propose_key",
            "propose_version",
        ],
        "table_places": ["TablePlaces"],
        "versions": [
            "MappingVersion",
            "history",
            "in_force",
            "keep_declared",
            "learn_once",
            "numbers_in_force",
            "read_marks",
            "read_numbered",
        ],
    },
)
