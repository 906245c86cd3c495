"""What a command that reads Arrow's tables does first."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

_LEFT_OUT = ("numpy", "pandas")


class _LeftOut(MetaPathFinder):
    """Says that NumPy and pandas are not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise for these; other finders answer for the rest."""
        if fullname in _LEFT_OUT:
            raise ModuleNotFoundError("left out", name=fullname)


def leave_pandas_out() -> None:
    """Keep Arrow from looking for pandas and NumPy, in a process that makes no frames or arrays.

    Arrow needs neither. Where they are installed, it imports NumPy as it and its functions are
    imported, and pandas with the first array it makes: 0.08 and 0.25 s of CPU. It looks once.
    Others may import both later. Not for processes that run users' code.
    """
    if "pandas" in sys.modules:
        return
    finder = _LeftOut()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa
        import pyarrow.compute

        pa.array([])
    finally:
        sys.meta_path.remove(finder)
