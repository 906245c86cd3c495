"""What all tables of the tracker are made with."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    MetaData,
    func,
    text,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def time_column(name: str, *, now: bool = False) -> Column[object]:
    """Return a column of a time; ``now``: never null, the tracker's clock by default."""
    if now:
        return Column(
            name, DateTime(timezone=True), nullable=False, server_default=func.clock_timestamp()
        )
    return Column(name, DateTime(timezone=True))


def count_column(name: str) -> Column[int]:
    """Return a column that counts from 0."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))
