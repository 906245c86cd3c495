"""What a command that reads Arrow's tables does first."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Says that pandas is not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise for pandas; other finders answer for the rest."""
        if fullname == "pandas":
            raise ModuleNotFoundError("left out", name=fullname)


def leave_pandas_out() -> None:
    """Keep Arrow from looking for pandas, in a process that makes no frames.

    With the first array it makes, Arrow imports pandas where it is installed: 0.25 s of CPU, a
    fifth of ``waybill trail``. It looks once. Not for processes that run users' code.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)
