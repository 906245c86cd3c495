"""Which tables are one: by the names of their destinations' engines, and by where these are."""

from __future__ import annotations

import pytest

from waybill.mappings import TablePlaces
from waybill.settings import DestinationSettings

HOUSE = "postgresql://ann:secret@db.example/house"


def places(**dsns):
    """Return the places of these destinations; an address says the kind."""
    kinds = {"postgresql": "postgres", "host=db.example dbname=house": "postgres"}
    return TablePlaces(
        {
            name: DestinationSettings(kind=kinds.get(dsn.partition("://")[0], "delta"), dsn=dsn)
            for name, dsn in dsns.items()
        }
    )


@pytest.mark.parametrize(
    ("dsn", "is_one"),
    [
        ("postgresql://ben:other@DB.example:5432/house?sslmode=require", True),
        ("host=db.example dbname=house", True),
        ("postgresql://ann:secret@db.example:5433/house", False),
        ("postgresql://ann:secret@db.example/office", False),
        ("postgresql://ann:secret@other.example/house", False),
        ("postgresql://ann:secret@db.example/house?port=no&strange=1", False),
        ("s3://db.example/house", False),
    ],
)
def test_a_database_is_one_place_whoever_logs_in_and_however_its_address_is_written(dsn, is_one):
    made = places(one=HOUSE, other=dsn)
    assert (made.key("one", "s", "t") == made.key("other", "s", "t")) is is_one
    assert made.elsewhere("one") == ([] if is_one else ["other"])


def test_two_services_of_libpq_are_two_places():
    made = places(one="postgresql://?service=house", other="postgresql://?service=office")
    assert made.elsewhere("one") == ["other"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "%2Ftmp%2Fsocket", "[::1]", ""])
def test_all_ways_to_the_own_host_are_one(host):
    made = places(one="postgresql://localhost/house", other=f"postgresql://{host}/house")
    assert made.elsewhere("one") == []


@pytest.mark.parametrize("dsn", ["s3://ann:x@Lake/t/", "s3://lake/t"])
def test_other_addresses_are_one_place_without_their_login(dsn):
    made = places(one="s3://lake/t", other=dsn, third="s3://lake/u")
    assert made.elsewhere("one") == ["third"]
    assert made.key("one", "s", "T") == made.key("other", "S", "t")


def test_an_option_may_name_another_place_behind_one_address():
    given = {
        name: DestinationSettings(kind="iceberg", dsn="s3://lake/t", options={"catalog": catalog})
        for name, catalog in (("one", "sqlite:a"), ("other", "sqlite:b"), ("third", "sqlite:a"))
    }
    assert TablePlaces(given).elsewhere("one") == ["other"]


def test_what_is_not_configured_is_certain_to_the_letter_and_may_be_any_place():
    made = places(one=HOUSE)
    assert made.key("gone", "s", "t") == made.key("gone", "s", "t")
    assert made.key("gone", "s", "t") != made.key("gone", "s", "T")
    assert made.elsewhere("gone") == []
    assert made.spelling("one", "gone")("T") == "t"
    assert made.spelling("one", "one")("T") == "T"
