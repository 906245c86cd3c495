"""Where an event is now, in a word and a sentence: by its last stop and what the tracker knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from waybill.tracing import Trace
from waybill.trails.tracker_facts import Known, ParkedNow, ReplayRow, place_of

State = Literal[
    "delivered",
    "parked",
    "replaying",
    "discarded",
    "quarantined",
    "filtered",
    "superseded",
    "duplicate",
    "split",
    "in flight",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where an event is now."""

    state: State
    said: str
    """A sentence, without a full stop."""
    first_at: datetime | None
    last_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "state": self.state,
            "said": self.said,
            "first_at": None if self.first_at is None else self.first_at.isoformat(),
            "last_at": None if self.last_at is None else self.last_at.isoformat(),
        }


def verdict_of(stops: Sequence[Trace], known: Known) -> Verdict:
    """Return where an event is, by its stops in order.

    The last stop says it; a parked one together with the state of its segment now.
    """
    if not stops:
        said = (
            "seen only by batches that are not committed: not yet, or they broke off and run again"
        )
        return Verdict("unknown", said, None, None)
    first_at = min(stop.at for stop in stops)
    last, later = _deciding(stops)
    state, said = _of_stop(last, _span((last.at - first_at).total_seconds()), known)
    return Verdict(state, said + later, first_at, max(stop.at for stop in stops))


def _deciding(stops: Sequence[Trace]) -> tuple[Trace, str]:
    """Return the stop that says where the event is, and words on what came after it.

    A copy that came after the event was delivered changes nothing.
    """
    last = stops[-1]
    if last.outcome in ("duplicate", "superseded"):
        for stop in reversed(stops):
            if stop.outcome == "delivered":
                return stop, f"; a copy that came at {_clock(last.at)} changed nothing"
    return last, ""


def _of_stop(last: Trace, took: str, known: Known) -> tuple[State, str]:
    if last.outcome == "parked":
        return _of_parked(last, known)
    say = _SAID.get((last.phase, last.outcome)) or _SAID.get(("", last.outcome))
    if say is None:
        return "unknown", f"last seen at {_clock(last.at)}: {last.phase} {last.outcome}"
    return say(last, took, known)


def _delivered(last: Trace, took: str, _known: Known) -> tuple[State, str]:
    return "delivered", f"delivered to {_destination(last)} at {_clock(last.at)} after {took}"


def _superseded(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    where = _destination(last)
    return "superseded", (
        f"superseded at {_clock(last.at)}: {where} had a newer version of its row already"
    )


def _duplicate(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "duplicate", (
        f"recognised as a copy at {_clock(last.at)}: {_destination(last)} had this version already"
    )


def _filtered(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "filtered", f"filtered on purpose by the {last.phase} at {_clock(last.at)}"


def _discarded(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "discarded", f"discarded at {_clock(last.at)}"


def _split(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    return "split", f"the transformation made other events of it at {_clock(last.at)}"


def _accepted(last: Trace, _took: str, _known: Known) -> tuple[State, str]:
    place = f" in topic {last.topic}" if last.topic else ""
    return "in flight", f"in flight: taken in at {_clock(last.at)},{place} not processed yet"


def _sent_back(last: Trace, _took: str, known: Known) -> tuple[State, str]:
    who = _by(known.replays.get(last.replay_id))
    said = f"in flight: sent back by a replay{who} at {_clock(last.at)}, not processed yet"
    return "in flight", said


def _mapped(last: Trace, _took: str, known: Known) -> tuple[State, str]:
    staged = known.staged.get(last.object_key)
    if staged is None or staged.state == "staged":
        return "in flight", f"in flight: staged at {_clock(last.at)}, not loaded yet"
    when = "" if staged.loaded_at is None else f" at {_clock(staged.loaded_at)}"
    return "in flight", (
        f"its commit {staged.commit_number} was loaded into {staged.destination}{when}; the trace "
        "that says what became of this event is not in yet, or was never shipped"
    )


_Say = Callable[[Trace, str, Known], tuple[State, str]]
_SAID: dict[tuple[str, str], _Say] = {
    ("destination", "delivered"): _delivered,
    ("", "superseded"): _superseded,
    ("", "duplicate"): _duplicate,
    ("", "filtered"): _filtered,
    ("", "discarded"): _discarded,
    ("", "replayed"): _sent_back,
    ("ingestion", "accepted"): _accepted,
    ("transformation", "passed"): _split,
    ("mapping", "passed"): _mapped,
}
"""By phase and outcome; without a phase: whatever it is."""


def _of_parked(last: Trace, known: Known) -> tuple[State, str]:
    now = known.parked_now(last)
    held = f"parked since {_clock(last.at)} at {last.phase}: {last.error_type}"
    if now is None and place_of(last) in known.unasked:
        return "parked", f"{held}; what became of it since was not looked up: ask for fewer events"
    if now is None:
        return "parked", f"{held}; the tracker has no row of it: was the tracker restored?"
    say = _NOW.get(now.state)
    if say is None:
        return "parked", f"{held}; now {now.state}"
    return say(last, held, now, known)


def _still(last: Trace, held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    again = "; parked again by its replay" if last.attempt else "; not replayed yet"
    return "parked", held + again


def _replaying(_last: Trace, held: str, now: ParkedNow, known: Known) -> tuple[State, str]:
    return "replaying", f"{held}; a replay{_by(known.replays.get(now.replay_id))} takes it back now"


def _replayed(last: Trace, _held: str, now: ParkedNow, known: Known) -> tuple[State, str]:
    when = "" if now.at is None else f" at {_clock(now.at)}"
    row = known.replays.get(now.replay_id)
    who = "" if row is None else f" by {row.requested_by}"
    return "in flight", (
        f"parked at {_clock(last.at)} at {last.phase} ({last.error_type}), and replayed{who}"
        f"{when}; traces of its way since are not in yet"
    )


def _thrown_away(last: Trace, _held: str, now: ParkedNow, _known: Known) -> tuple[State, str]:
    who = f" by {now.by}" if now.by else ""
    when = "" if now.at is None else f" at {_clock(now.at)}"
    why = f": {now.why}" if now.why else ""
    gone = ", and cleaned up since" if now.state.startswith("deleted") else ""
    parked = f"parked at {_clock(last.at)} at {last.phase}, {last.error_type}"
    return "discarded", f"discarded{who}{when}{why} ({parked}){gone}"


def _copied(last: Trace, _held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    return "duplicate", (
        f"recognised as a copy at {_clock(last.at)}: the event itself was parked at {last.phase} "
        f"({last.error_type}) already"
    )


def _quarantined(_last: Trace, held: str, _now: ParkedNow, _known: Known) -> tuple[State, str]:
    return "quarantined", f"{held}; its parked file is damaged or gone: `waybill parked recheck`"


_NOW: dict[str, Callable[[Trace, str, ParkedNow, Known], tuple[State, str]]] = {
    "parked": _still,
    "replaying": _replaying,
    "replayed": _replayed,
    "deleted after a replay": _replayed,
    "discarded": _thrown_away,
    "deleted after a discard": _thrown_away,
    "quarantined": _quarantined,
    "copy": _copied,
}


def _by(replay: ReplayRow | None) -> str:
    return "" if replay is None else f" of {replay.requested_by}"


def _destination(stop: Trace) -> str:
    return stop.object_key or "the destination"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    """Return "0.42 s", "12.3 s", "3 min 5 s", "2 h 10 min", "3 d 4 h"."""
    if seconds < 10:  # noqa: PLR2004 - below it two digits count
        return f"{seconds:.2f} s"
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, below, small in ((60, "min", "s"), (3600, "h", "min"), (86400, "d", "h")):
        if whole < unit * _STEPS[below]:
            return f"{whole // unit} {below} {whole % unit // _UNIT[small]} {small}"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


_STEPS = {"min": 60, "h": 24, "d": 10**9}
_UNIT = {"s": 1, "min": 60, "h": 3600}
