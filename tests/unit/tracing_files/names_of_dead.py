"""Names of files whose writers have died."""

from __future__ import annotations

import os

from waybill.tracing.files.spool import new_name


def name_of_dead() -> str:
    """A file name whose owner has died (and been waited for)."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, new_name().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    name = os.read(read_end, 200).decode()
    os.close(read_end)
    os.close(write_end)
    assert f"-{pid}-" in name
    return name
