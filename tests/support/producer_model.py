"""What a lossless producer owes its caller, written down as it goes; checked against a memory Kafka."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.support.memory_kafka import MemoryKafka, Stored

from waybill.errors import RetryError
from waybill.producer.client import HEADER, read_stamp


@dataclass
class Sent:
    """A message given to ``produce``."""

    number: int
    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    told: str
    """Whom ``on_delivery`` is: nobody, a callable of its own, one that is shared."""
    lsn: int = 0
    """0: ``produce`` did not return."""
    behind: tuple[int, ...] = ()
    """Messages of its key that waited when it was produced."""

    @property
    def print(self):
        return self.topic, self.key, self.value


def headers_of(sent: Sent, first_lsn: int) -> dict[str, str]:
    """Return the headers of messages that are produced in one call, numbered from ``sent`` on."""
    return {"n": str(sent.number), "from": str(first_lsn)}


def number_of(headers, lsn: int) -> int:
    """Return a message's number, by its headers and lsn."""
    known = dict(headers)
    first_lsn = known.get("from")
    return int(known["n"]) + (0 if first_lsn is None else lsn - int(first_lsn))


def _number(message: Stored) -> int:
    stamp = read_stamp(message.header(HEADER))
    assert stamp is not None
    return number_of(message.headers, stamp[2])


class Model:
    """``owed``: numbers of messages that must not be lost. A message's number is in its headers."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self.kafka = kafka
        self.sent: dict[int, Sent] = {}
        self.owed: set[int] = set()
        self.taken: Counter[int] = Counter()
        self.taken_lsns: set[int] = set()
        self.busy = 0
        """So many further times ``take`` refuses for now."""
        self.excused: set[int] = set()
        """Messages that may be there twice, when the tail cannot be read."""
        self.is_parked = lambda _lsn: False
        self.life: set[int] = set()
        """Messages that this life produced."""
        self.told: Counter[int] = Counter()
        self.told_shared: Counter[tuple] = Counter()

    # What the producer's caller does

    def new(self, producer, topic, key, value, partition, told) -> Sent:
        sent = Sent(len(self.sent) + 1, topic, key, value, partition, told)
        if key is not None and (topic, key) in producer._sender.held:
            entries = producer.components.retry_queue._pending.entries
            lsns = {e.lsn for e in entries if (e.topic, e.key) == (topic, key)}
            sent.behind = tuple(n for n in self.life if self.sent[n].lsn in lsns)
        self.sent[sent.number] = sent
        return sent

    def accepted(self, sent: Sent, lsn: int) -> None:
        sent.lsn = lsn
        self.owed.add(sent.number)
        self.life.add(sent.number)

    def on_delivery(self, sent: Sent):
        if sent.told == "own":
            return lambda error, message: self._tell(sent, error, message)
        return self.shared if sent.told == "shared" else None

    def _tell(self, sent: Sent, error, message) -> None:
        self.told[sent.number] += 1
        assert (message.topic(), message.key(), message.value()) == sent.print
        assert self.told[sent.number] == 1, "told twice"
        if error is None:
            assert self.there[sent.number], "told of a delivery that was none"
        else:
            taken = self.taken[sent.number] or self.is_parked(sent.lsn)
            assert taken, "told that it was given up, and it was not"

    def shared(self, error, message) -> None:
        self.told_shared[message.topic(), message.key(), message.value()] += 1

    def take(self, message) -> None:
        """``on_undeliverable``, with a store that no death harms."""
        if self.busy:
            self.busy -= 1
            raise RetryError("not now")
        number = number_of(message.headers, message.lsn)
        assert (message.topic, message.key, message.value) == self.sent[number].print
        self.taken[number] += 1
        self.taken_lsns.add(message.lsn)

    def was_taken(self, wal_id, first_lsn):
        return {lsn for lsn in self.taken_lsns if lsn >= first_lsn}

    def begin_life(self) -> None:
        self.life, self.told, self.told_shared = set(), Counter(), Counter()

    def died(self, floor_lsn: int) -> None:
        """Note what is in doubt."""
        for sent in self.sent.values():  # recovery hands them over together
            sent.behind = ()
        self.excused |= {n for n, sent in self.sent.items() if not 0 < sent.lsn < floor_lsn}

    def excuse(self, lsns) -> None:
        """Note what is in the retry log at a death."""
        self.excused |= {n for n, sent in self.sent.items() if sent.lsn in lsns}

    def lost_power(self, synced_lsn: int) -> None:
        self.owed = {n for n in self.owed if self.sent[n].lsn <= synced_lsn}

    # What is true of it

    @property
    def there(self) -> Counter[int]:
        return Counter(_number(m) for m in self.kafka.messages)

    def check_watermark(self, low_lsn: int, retry, parked: set[int]) -> None:
        there = self.there
        for number in self.owed:
            sent = self.sent[number]
            if sent.lsn < low_lsn:
                settled = there[number] or self.taken[number] or sent.lsn in parked
                assert settled or sent.lsn in retry, f"the watermark passed {sent}"

    def check_settled(self, settled, parked: set[int]) -> None:
        """What is said to be settled up to an lsn is in the topic, or was taken."""
        there = self.there
        for number in self.owed:
            sent = self.sent[number]
            if settled(sent.lsn):
                done = there[number] or self.taken[number] or sent.lsn in parked
                assert done, f"it was said to be settled: {sent}"

    def check_told(self) -> None:
        """All of this life's messages are settled."""
        shared, tried = Counter(), Counter()
        for sent in self.sent.values():
            if sent.number in self.life:
                assert self.told[sent.number] == (sent.told == "own"), sent
                shared[sent.print] += sent.told == "shared"
            tried[sent.print] += sent.told == "shared"  # ``produce`` may have raised
        assert shared <= self.told_shared <= tried

    def check_told_once(self) -> None:
        assert all(self.told[n] <= 1 for n in self.life)

    def check_end(self, parked: Counter[int]) -> None:
        """All that is owed is settled."""
        there, taken = self.there, self.taken + parked
        for message in self.kafka.messages:
            sent = self.sent[_number(message)]
            assert (message.topic(), message.key(), message.value()) == sent.print
        doubtful = self._doubtful()
        for number, sent in self.sent.items():
            count = there[number] + taken[number]
            assert count or number not in self.owed, f"lost: {sent}"
            if self.kafka.readable or number not in doubtful:
                assert count <= 1, f"{there[number]} times there, {taken[number]} taken: {sent}"
        if self.kafka.readable:
            self._check_order()

    def _doubtful(self) -> set[int]:
        """Messages like one that failed, or in doubt at a death."""
        prints = {(m.topic(), m.key(), m.value()) for _, m in self.kafka.failed}
        return self.excused | {n for n, sent in self.sent.items() if sent.print in prints}

    def _check_order(self) -> None:
        failed = {(m.topic(), m.key()) for _, m in self.kafka.failed}
        rows = defaultdict(list)
        at = {}
        for message in self.kafka.messages:
            sent = self.sent[_number(message)]
            at[sent.number] = (message.topic(), message.partition()), message.offset()
            if sent.key is not None and (sent.topic, sent.key) not in failed:
                rows[message.topic(), message.partition(), sent.key].append(sent.number)
        for row in rows.values():
            assert row == sorted(row), "out of order, and nothing failed"
        again = {_number(m) for _, m in self.kafka.failed}
        for number, sent in self.sent.items():
            for before in set(sent.behind) - again:  # those failed when others were on their way
                if number in at and before in at and at[number][0] == at[before][0]:
                    assert at[before] < at[number], f"{sent} went before {self.sent[before]}"
