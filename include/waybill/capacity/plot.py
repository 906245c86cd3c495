"""A simulation drawn: in a terminal of 80 columns, and as SVG or PNG for a browser or a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from waybill.capacity.simulation import Minute, Run
from waybill.errors import InputError

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

    charts = [_svg_chart(one) for one in _charts(run)]
    width, height = _size()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="22" font-size="16">{escape(title)}</text>{"".join(charts)}</svg>\n'
    )


def png_plot(run: Run, title: str) -> bytes:
    """Return the same as a PNG.

    Raises:
        InputError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise InputError(
            "a PNG is drawn by Pillow, and it is not installed: pip install 'waybill[plots]', or "
            "draw an SVG: --out with a name that ends with .svg"
        ) from error
    from io import BytesIO

    image = Image.new("RGB", _size(), "#ffffff")
    pen = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(13), ImageFont.load_default(16)
    pen.text((_LEFT, 22), title, "#000000", large, anchor="ls")
    for one in _charts(run):
        for x, y, words, side in one.texts:
            pen.text((x, y), words, "#000000", small, anchor="rs" if side == "end" else "ls")
        pen.line([(_LEFT, one.low), (_LEFT + _WIDTH, one.low)], "#999999")
        pen.line(list(one.points), one.colour, 2)
    written = BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


@dataclass(frozen=True, slots=True)
class _Chart:
    """One series, in pixels."""

    colour: str
    low: int
    """Where its axis is."""
    points: tuple[tuple[float, float], ...]
    texts: tuple[tuple[int, int, str, str], ...]
    """(x, baseline, words, which end of them is at x)."""


def _size() -> tuple[int, int]:
    return _WIDTH + _LEFT + 20, 40 + len(_SERIES) * (_HEIGHT + 40)


def _charts(run: Run) -> list[_Chart]:
    if len(run.minutes) <= 1:
        return []
    return [_chart(run.minutes, place, one) for place, one in enumerate(_SERIES)]


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


def _chart(minutes: Sequence[Minute], place: int, series: tuple[str, str, str]) -> _Chart:
    title, name, colour = series
    values = [float(getattr(one, name)) for one in minutes]
    top, low = max([*values, 1.0]), 70 + place * (_HEIGHT + 40) + _HEIGHT - 20
    last = minutes[-1].at_s or 1
    points = tuple(
        (_LEFT + _WIDTH * one.at_s / last, low - (_HEIGHT - 20) * value / top)
        for one, value in zip(minutes, values, strict=True)
    )
    texts = (
        (_LEFT, low - _HEIGHT + 12, title, "start"),
        (_LEFT - 8, low - _HEIGHT + 26, f"{top:,.0f}", "end"),
        (_LEFT - 8, low, "0", "end"),
        (_LEFT + _WIDTH, low + 16, f"{last / 3600:.1f} h", "end"),
    )
    return _Chart(colour, low, points, texts)


def _svg_chart(one: _Chart) -> str:
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{side}">{words}</text>'
        for x, y, words, side in one.texts
    )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in one.points)
    return (
        f'{texts}<path d="M{_LEFT} {one.low}H{_LEFT + _WIDTH}" stroke="#999"/>'
        f'<polyline fill="none" stroke="{one.colour}" stroke-width="1.5" points="{points}"/>'
    )
