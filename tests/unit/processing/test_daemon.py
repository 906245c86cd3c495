"""Where Spark's Python workers find their modules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyspark
import pytest

from waybill.processing.spark.daemon import without_archives

INSTALLED = Path(pyspark.__file__).parent
ARCHIVES = [
    *sorted(map(str, (INSTALLED / "python" / "lib").glob("*.zip"))),
    *map(str, (INSTALLED / "jars").glob("spark-core_*.jar")),
]
SITE = str(INSTALLED.parent)


def test_archives_of_the_installed_spark_are_left_out_of_the_path() -> None:
    assert [Path(one).name.split("-")[0] for one in ARCHIVES] == ["py4j", "pyspark.zip", "spark"]
    assert without_archives([*ARCHIVES, "", "/job", SITE]) == ["", "/job", SITE]


def test_archives_that_a_job_brings_stay(tmp_path: Path) -> None:
    brought = str(tmp_path / "library.zip")
    assert without_archives([*ARCHIVES, brought, SITE]) == [brought, SITE]


@pytest.mark.parametrize("site", [[SITE], []])
def test_archives_of_another_spark_or_without_an_installed_one_stay(
    tmp_path: Path, site: list[str]
) -> None:
    theirs = [shutil.copy(one, tmp_path) for one in ARCHIVES]
    assert without_archives([*theirs, *site]) == [*theirs, *site]


def test_archives_stay_where_no_spark_is_installed() -> None:
    assert without_archives([*ARCHIVES, "/nowhere"]) == [*ARCHIVES, "/nowhere"]


def test_a_path_without_archives_is_as_it_was() -> None:
    assert without_archives(["", SITE]) == ["", SITE]
