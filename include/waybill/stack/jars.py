"""The Java archives of the embedded Kafka and of Spark's Kafka connector.

``jars.lock`` names each file with its sha256. `ensure` fetches what is missing or wrong by the Ivy
that ships inside pyspark, each artifact by itself (no transitive resolution, so nothing unnamed
arrives), checks it, and moves it into place: a file in the folder is always whole. A break at any
point is made up by the next call; what Ivy had fetched is in its cache. Ivy asks for one file after
the other, so several of it run at once: 51 jars took 71 s, and take 20.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from xml.sax.saxutils import quoteattr

from waybill.errors import InputError, RetryError
from waybill.stack import state_folder
from waybill.stack.java import find_java

KAFKA, SPARK = "kafka", "spark"
_JARS_A_CALL, _AT_ONCE = 10, 6
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Compiled quickly and collected by one thread: half the CPU of a Java that lives for seconds."""


@dataclass(frozen=True)
class Jar:
    """One line of the lock. ``file`` is relative to the jars folder: ``kafka/re2j-1.8.jar``."""

    sha256: str
    file: str
    organisation: str
    name: str
    revision: str
    classifier: str = ""


def locked(lock: Path | None = None) -> list[Jar]:
    """Return all jars that are needed, or those of another lock."""
    lines = (lock or files("waybill.stack").joinpath("jars.lock")).read_text().splitlines()
    return [_parse(line) for line in lines if line and not line.startswith("#")]


def _parse(line: str) -> Jar:
    sha256, file, coordinates = line.split()
    return Jar(sha256, file, *coordinates.split(":"))


def missing(root: Path, needed: Sequence[Jar] | None = None) -> list[Jar]:
    """Return the jars not in ``root`` with the right content. Reads all: 60 MB, about 0.1 s."""
    needed = locked() if needed is None else needed
    return [jar for jar in needed if _sha256(root / jar.file) != jar.sha256]


def ensure(root: Path, needed: Sequence[Jar] | None = None) -> int:
    """Make ``root`` (with ``kafka/`` and ``spark/``) hold every locked jar; return how many came.

    Args:
        root: folder of the jars.
        needed: those of another lock; their folders are as their files say.

    Raises:
        InputError: Java is missing, or a fetched file is not the locked one.
        RetryError: the download failed; what came is kept, the next call goes on from there.
    """
    if not missing(root, needed):
        return 0
    with state_folder.exclusive(root / ".lock", timeout_s=900.0):
        return _fetch(root, needed)


def _fetch(root: Path, needed: Sequence[Jar] | None) -> int:
    wanted = missing(root, needed)
    if not wanted:
        return 0  # another process fetched them while this one waited
    scratch = root / ".download"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    output = _run_ivy(wanted, scratch, root / ".ivy")
    came = [jar for jar in wanted if (scratch / jar.file).exists()]
    for jar in came:
        _accept(jar, scratch, root)
    if missed := [jar.file for jar in wanted if jar not in came]:
        reason = "\n".join(output.strip().splitlines()[-12:])
        raise RetryError(f"could not fetch {missed[0]}; run the command again. Ivy said:\n{reason}")
    shutil.rmtree(scratch)
    shutil.rmtree(root / ".ivy", ignore_errors=True)  # all is in place; it would only take room
    return len(wanted)


def _accept(jar: Jar, scratch: Path, root: Path) -> None:
    got = scratch / jar.file
    if (found := _sha256(got)) != jar.sha256:
        raise InputError(
            f"{jar.file} arrived with sha256 {found}, the lock says {jar.sha256}: it was "
            f"changed on the way or in {root / '.ivy'}. Delete that folder and try again."
        )
    target = root / jar.file
    target.parent.mkdir(exist_ok=True)
    got.replace(target)


def _run_ivy(jars: Sequence[Jar], scratch: Path, cache: Path) -> str:
    """Fetch into ``scratch/<folder>/``; return what Ivy printed where it failed."""
    folders = sorted({jar.file.partition("/")[0] for jar in jars})
    in_folders = [[jar for jar in jars if jar.file.startswith(f"{name}/")] for name in folders]
    parts = [
        some[start : start + _JARS_A_CALL]
        for some in in_folders
        for start in range(0, len(some), _JARS_A_CALL)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        caches = (cache / str(number) for number in range(len(parts)))
        return "".join(pool.map(_call_ivy, parts, repeat(scratch), caches))


def _call_ivy(jars: Sequence[Jar], scratch: Path, cache: Path) -> str:
    """Fetch jars of one folder. The cache is this call's own: Ivy locks nothing in it."""
    target = scratch / jars[0].file.partition("/")[0]
    description = scratch / f"{target.name}-{cache.name}.xml"
    description.write_text(_ivy_file(jars))
    pattern = f"{target.absolute()}/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(find_java().path), *_SHORT_LIVED, "-jar", str(_ivy_jar())]
    command += ["-ivy", str(description.absolute())]
    command += ["-confs", "default", "-cache", str(cache.absolute()), "-retrieve", pattern]
    try:
        run = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=900
        )
    except subprocess.TimeoutExpired as error:
        raise RetryError("fetching jars took over 15 minutes; run the command again") from error
    return run.stdout + run.stderr if run.returncode else ""


def _ivy_file(jars: Sequence[Jar]) -> str:
    lines = [
        f"<dependency org={quoteattr(j.organisation)} name={quoteattr(j.name)} "
        f'rev={quoteattr(j.revision)} transitive="false" conf="default->master">'
        f"{_artifact(j)}</dependency>"
        for j in jars
    ]
    head = '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
    head += '<info organisation="waybill" module="jars"/>'
    head += '<configurations><conf name="default"/></configurations><dependencies>'
    return head + "\n".join(lines) + "</dependencies></ivy-module>\n"


def _artifact(jar: Jar) -> str:
    """Name the artifact where its POM alone would let Ivy take another."""
    ending = jar.file.rpartition(".")[2]
    if ending == "jar" and not jar.classifier:
        return ""
    classifier = f"m:classifier={quoteattr(jar.classifier)} " if jar.classifier else ""
    return f'<artifact name={quoteattr(jar.name)} {classifier}type="{ending}" ext="{ending}"/>'


def _ivy_jar() -> Path:
    """Find pyspark's Ivy without importing pyspark."""
    spec = find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    found = [p for f in folders or () for p in Path(f).glob("jars/ivy-*.jar")]
    if not found:
        raise InputError("pyspark (which brings Ivy) is not installed: make venv")
    return found[0]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None
