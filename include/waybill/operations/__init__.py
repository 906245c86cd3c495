"""Use cases that span rooms: ingest, replay, dry run, deploy, balance, trail, applications.

Each takes its parts opened (``wiring`` opens them) and leaves its work finished or resumable.

Invariants
  I1  A page or a segment is whole in the write-ahead log, with its mark, before the tracker hears
      of it; a crash between the two is finished from the mark by the next run.
  I2  A run that finds the beginning of an unfinished page or segment in the log appends only the
      rest of it.
"""

__all__: list[str] = []
