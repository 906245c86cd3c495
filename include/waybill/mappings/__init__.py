"""Mappings: what an event name becomes in a destination, as declared and as learned from events.

Invariants
  M1  A column's name, once given to a field, is that field's for ever, whatever is declared,
      dropped or met later; two fields never share a column.
  M2  A version in force holds every column and every type of those before it, or wider ones.
  M3  Two who meet a new field at once add it once: versions are made one after the other.
  M4  What a value is widened to holds all values of the column exactly; no number becomes a float
      that it is not.
"""
