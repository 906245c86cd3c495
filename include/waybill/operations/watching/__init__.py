"""Eager checks: what is out of the usual before any equation of the ledger breaks.

checks     all of them, once: what is found is told as breaches, what is over is settled
habits     quiet, parked_jump: decided by the pure functions of quiet, parked
lateness   late: ages of what waits, decided by ages
stranded   events in the write-ahead logs of runs that are gone
drift      a table's rows against what loads put there
measured   what is measured in the tracker; limits, findings, told: values
"""
