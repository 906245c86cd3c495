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

from waybill.mappings.evolution import ITEM, Given, InForce, item_of, learn, row_of, takes_any_item
from waybill.mappings.flattening import decode_path, encode_path, fields_of, flatten, whole_fields
from waybill.mappings.inference import type_of, type_of_all
from waybill.mappings.laying_over import over
from waybill.mappings.naming import NameRules, name_fields, plain_name, rules_of, table_name

__all__ = [
    "ITEM",
    "Given",
    "InForce",
    "NameRules",
    "decode_path",
    "encode_path",
    "fields_of",
    "flatten",
    "item_of",
    "learn",
    "name_fields",
    "over",
    "plain_name",
    "row_of",
    "rules_of",
    "table_name",
    "takes_any_item",
    "type_of",
    "type_of_all",
    "whole_fields",
]
