"""When a look that was written down goes on, and when it is another."""

from waybill.access.access_log import LONGEST_S, PAUSE_S, AccessLog, look_at


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def asked(looks, clock, *times, look=b"one"):
    """Ask at these times, writing down what is no look that goes on; return the times of entries."""
    written = []
    for clock.now in times:
        if not looks.goes_on(look):
            looks.written(look)
            written.append(clock.now)
    return written


def test_a_look_ends_with_a_pause():
    clock = Clock()
    times = (0, 5, 10, 10 + PAUSE_S, 11 + 2 * PAUSE_S, 12 + 2 * PAUSE_S)
    assert asked(AccessLog(clock), clock, *times) == [0, 11 + 2 * PAUSE_S]


def test_who_never_stops_asking_has_an_entry_each_hour():
    clock = Clock()
    entries = asked(AccessLog(clock), clock, *range(0, int(2.5 * LONGEST_S), 5))
    assert entries == [0, LONGEST_S + 5, 2 * (LONGEST_S + 5)]


def test_a_look_that_was_not_written_does_not_go_on():
    looks = AccessLog(Clock())
    assert [looks.goes_on(b"one") for _ in range(3)] == [False] * 3


def test_looks_are_forgotten_rather_than_kept_without_end(monkeypatch):
    monkeypatch.setattr("waybill.access.access_log._MOST", 2)
    looks, clock = AccessLog(Clock()), Clock()
    for look in (b"one", b"two", b"three"):
        assert asked(looks, clock, 0, look=look) == [0]
    assert looks.goes_on(b"three")
    assert not looks.goes_on(b"one")


def test_looks_differ_by_who_sees_what_of_whom_and_not_by_the_order():
    seen = [("last", "1", "m"), ("cause", "1", "m")]
    same = {look_at("pia", "a", seen), look_at("pia", "a", seen[::-1] + seen)}
    assert len(same) == 1
    others = {
        look_at("ann", "a", seen),
        look_at("pia", "b", seen),
        look_at("pia", "a", seen[:1]),
        look_at("pia", "a", [("last", "1", "m"), ("cause", "2", "m")]),
        look_at("pia", "a", [("last", "1", "m'), ('cause', '1', 'm")]),
        look_at("pia", "a", [*seen, ("hold", "1", "m")]),
    }
    assert len(others | same) == 7
