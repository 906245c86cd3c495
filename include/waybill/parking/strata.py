"""How many events a stratified sample takes of each group."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

_FLOOR = 30
"""A group gets as many at least, where the sample has room: enough for a rate of its own."""
_ROOM = 5
"""Groups get one in five of the sample's places at most; the smallest beyond are one group."""


def merged(sizes: Mapping[K, int], n: int, rest: K) -> dict[K, K]:
    """Return {group: the group it is sampled with}: itself, or ``rest`` for the smallest.

    Args:
        sizes: group to its number of events.
        n: events in the sample.
        rest: what the smallest groups are sampled as, together.
    """
    most = max(1, n // _ROOM)
    largest = sorted(sizes, key=lambda key: (-sizes[key], str(key)))
    if len(largest) <= most:
        return {key: key for key in largest}
    own = set(largest[: most - 1])
    return {key: key if key in own else rest for key in largest}


def allocated(sizes: Mapping[K, int], n: int) -> dict[K, int]:
    """Share a sample of ``n`` out: a floor for each group, the rest in proportion to their sizes.

    No group gets more than it has; all of them together at most ``n``, or all there is. There are
    at most ``n`` groups.
    """
    if sum(sizes.values()) <= n:
        return dict(sizes)
    floor = max(1, min(_FLOOR, n // (2 * len(sizes))))
    shares = {key: min(size, floor) for key, size in sizes.items()}
    while left := n - sum(shares.values()):
        open_sizes = {key: size for key, size in sizes.items() if size > shares[key]}
        whole = sum(open_sizes.values())
        wanted = {key: left * size / whole for key, size in open_sizes.items()}
        for key, more in wanted.items():
            shares[key] = min(sizes[key], shares[key] + int(more))
        if all(more < 1 for more in wanted.values()):
            for key in sorted(wanted, key=lambda key: -wanted[key])[:left]:
                shares[key] += 1
            break
    return shares
