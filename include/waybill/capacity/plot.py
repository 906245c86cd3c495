"""A simulation drawn: in a terminal of 80 columns, and as SVG for a browser or a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from waybill.capacity.simulation import Minute, Run

_COLUMNS, _ROWS = 68, 5
_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _LEFT = 900, 150, 70
_SERIES = (
    ("p95 wait, s", "p95_s", "#b45309"),
    ("tasks that wait", "waiting", "#7c3aed"),
    ("tasks at work", "busy", "#0f766e"),
    ("nodes", "nodes", "#1d4ed8"),
)


def terminal_plot(run: Run) -> list[str]:
    """Return lines of at most 80 columns: waits, work and nodes over time."""
    hours = run.minutes[-1].at_s / 3600 if run.minutes else 0.0
    lines = []
    for title, name, _ in _SERIES:
        values = _columns(run.minutes, name)
        top = max([*values, 0.0])
        lines.append(f"{title}, at most {top:,.0f}")
        lines += _rows(values, top)
    lines.append(" " * 10 + f"0 h{f'{hours:.1f} h':>{_COLUMNS - 3}}")
    return lines


def svg_plot(run: Run, title: str) -> str:
    """Return the same as an SVG document."""
    from xml.sax.saxutils import escape

    charts = [
        _chart(run.minutes, place, one) for place, one in enumerate(_SERIES) if len(run.minutes) > 1
    ]
    height = 40 + len(_SERIES) * (_HEIGHT + 40)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEFT + 20} {height}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="22" font-size="16">{escape(title)}</text>{"".join(charts)}</svg>\n'
    )


def _columns(minutes: Sequence[Minute], name: str) -> list[float]:
    """Return the peak of each column."""
    values = [float(getattr(one, name)) for one in minutes]
    size = len(values)
    bounds = [i * size // _COLUMNS for i in range(_COLUMNS + 1)]
    return [max(values[a : max(b, a + 1)], default=0.0) for a, b in pairwise(bounds)]


def _rows(values: Sequence[float], top: float) -> Iterator[str]:
    eighths = [round(value / top * _ROWS * 8) if top else 0 for value in values]
    for row in reversed(range(_ROWS)):
        label = f"{top:,.0f}" if row == _ROWS - 1 else "0" if row == 0 else ""
        cells = "".join(_BLOCKS[min(8, max(0, one - 8 * row))] for one in eighths)
        yield f"{label:>9} {cells}".rstrip()


def _chart(minutes: Sequence[Minute], place: int, series: tuple[str, str, str]) -> str:
    title, name, colour = series
    values = [float(getattr(one, name)) for one in minutes]
    top, low = max([*values, 1.0]), 70 + place * (_HEIGHT + 40) + _HEIGHT - 20
    last = minutes[-1].at_s or 1
    points = " ".join(
        f"{_LEFT + _WIDTH * one.at_s / last:.1f},{low - (_HEIGHT - 20) * value / top:.1f}"
        for one, value in zip(minutes, values, strict=True)
    )
    return (
        f'<text x="{_LEFT}" y="{low - _HEIGHT + 12}">{title}</text>'
        f'<text x="{_LEFT - 8}" y="{low - _HEIGHT + 26}" text-anchor="end">{top:,.0f}</text>'
        f'<text x="{_LEFT - 8}" y="{low}" text-anchor="end">0</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{low + 16}" text-anchor="end">{last / 3600:.1f} h</text>'
        f'<path d="M{_LEFT} {low}H{_LEFT + _WIDTH}" stroke="#999"/>'
        f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
    )
