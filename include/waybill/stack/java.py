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


class JavaError(InputError):
    """No Java can be used; ``found`` says what is there, ``remedy`` what to do."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}. {remedy}")
        self.found = found
        self.remedy = remedy


@dataclass(frozen=True)
class Java:
    """A Java launcher that was found. ``version``: its major number."""

    path: Path
    version: int


def find_java() -> Java:
    """Return the Java to use; costs one start of it (about 50 ms).

    Raises:
        JavaError: none there, it does not run, or it is older than 17; with what helps.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise JavaError(
            "Java is missing: no `java` on PATH", f"Java {OLDEST} or newer is needed: {INSTALL}"
        )
    if not os.access(found, os.X_OK):
        raise JavaError(f"JAVA_HOME={home} is wrong: it has no bin/java", _mend_home())
    version = _version_of(found, home)
    if version < OLDEST:
        remedy = f"Java {OLDEST} or newer is needed: {INSTALL}"
        raise JavaError(
            f"{found} is Java {version}",
            _mend_home() if home else f"{remedy}; or let JAVA_HOME name one that is there",
        )
    return Java(Path(found), version)


def _mend_home() -> str:
    """Return what to do about a JAVA_HOME that names no usable Java."""
    there = shutil.which("java")
    other = f"unset it to use {there}" if there else f"unset it and install one: {INSTALL}"
    return f"Let JAVA_HOME name the folder of a Java {OLDEST} or newer, or {other}"


def _version_of(java: str, home: str | None) -> int:
    remedy = _mend_home() if home else f"Install a working Java: {INSTALL}"
    try:
        run = subprocess.run(  # noqa: S603 - found by the rules above
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} does not run ({error})", remedy) from error
    match = _VERSION.search(run.stderr + run.stdout)
    if run.returncode or match is None:
        said = (run.stderr or run.stdout).strip()[:300]
        raise JavaError(f"{java} -version does not tell a version: {said!r}", remedy)
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
