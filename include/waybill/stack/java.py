"""The Java that runs Kafka and Spark: JAVA_HOME first, then PATH; 17 or newer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from waybill.errors import InputError

OLDEST = 17
INSTALL = "apt-get install -y openjdk-17-jre-headless"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')


@dataclass(frozen=True)
class Java:
    """A Java launcher that was found. ``version``: its major number."""

    path: Path
    version: int


def find_java() -> Java:
    """Return the Java to use; costs one start of it (about 50 ms).

    Raises: InputError: none there, it does not run, or it is older than 17; with the command that
        helps.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not os.access(found, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "no `java` on PATH"
        raise InputError(f"Java is missing ({where}). Java {OLDEST} or newer is needed: {INSTALL}")
    version = _version_of(found)
    if version < OLDEST:
        raise InputError(
            f"{found} is Java {version}; Java {OLDEST} or newer is needed: {INSTALL}\n"
            "When a newer one is installed already, let JAVA_HOME name it."
        )
    return Java(Path(found), version)


def _version_of(java: str) -> int:
    try:
        run = subprocess.run(  # noqa: S603 - found by the rules above
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{java} does not run ({error}). A working Java: {INSTALL}") from error
    match = _VERSION.search(run.stderr + run.stdout)
    if run.returncode or match is None:
        said = (run.stderr or run.stdout).strip()[:300]
        raise InputError(f"{java} -version does not tell a version: {said!r}. Java: {INSTALL}")
    return int(match[1])


def main() -> None:
    """``python -m waybill.stack.java``: say which Java is used, or with exit code 1 what to do."""
    try:
        java = find_java()
    except InputError as error:
        sys.exit(str(error))
    sys.stdout.write(f"Java {java.version}: {java.path}\n")


if __name__ == "__main__":
    main()
