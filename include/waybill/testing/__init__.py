"""Pipelines tried without servers: example events in, rows and parked events out.

For a pipeline's own tests::

    from waybill.testing import run_pipeline

    def test_an_order_without_an_amount_parks():
        result = run_pipeline(FOLDER, [{"id": "A-1", "amount": None}])
        assert [parked.error_type for parked in result.parked] == ["null_value"]

An ``Event`` has a name and may be a delete. pytest has the fixture ``waybill_pipeline``
(``pytest_plugin``). ``read_sample`` and ``run_sample`` do the same with the first records of the
pipeline's source (``waybill run --local``, ``waybill dev``).

The events are made as ingestion makes them, and go through the stages as in processing. What only
servers know is not tried: what a destination refuses, and which of two rows of one key wins.

Invariants
  I1  Nothing is written, and no server is asked but a source that is to be read.
  I2  User code runs in forked children: an event that ends the interpreter, or never ends, parks.
  I3  The same folder and events give the same ids, versions and times.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.testing.events import Event as Event
    from waybill.testing.events import declared_event as declared_event
    from waybill.testing.events import example_event as example_event
    from waybill.testing.examples import KEY_ONLY as KEY_ONLY
    from waybill.testing.examples import Example as Example
    from waybill.testing.examples import TriedDelete as TriedDelete
    from waybill.testing.examples import differences as differences
    from waybill.testing.examples import read_examples as read_examples
    from waybill.testing.examples import untried_deletes as untried_deletes
    from waybill.testing.own_tests import OwnTests as OwnTests
    from waybill.testing.own_tests import run_own_tests as run_own_tests
    from waybill.testing.runs import EventResult as EventResult
    from waybill.testing.runs import ParkedResult as ParkedResult
    from waybill.testing.runs import PipelineResult as PipelineResult
    from waybill.testing.runs import json_value as json_value
    from waybill.testing.runs import run_pipeline as run_pipeline
    from waybill.testing.samples import Sample as Sample
    from waybill.testing.samples import SampleEvent as SampleEvent
    from waybill.testing.samples import SampleResult as SampleResult
    from waybill.testing.samples import masked_result as masked_result
    from waybill.testing.samples import read_sample as read_sample
    from waybill.testing.samples import run_sample as run_sample

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "examples": [
            "KEY_ONLY",
            "Example",
            "TriedDelete",
            "differences",
            "read_examples",
            "untried_deletes",
        ],
        "events": ["Event", "declared_event", "example_event"],
        "own_tests": ["OwnTests", "run_own_tests"],
        "runs": ["EventResult", "ParkedResult", "PipelineResult", "json_value", "run_pipeline"],
        "samples": [
            "Sample",
            "SampleEvent",
            "SampleResult",
            "masked_result",
            "read_sample",
            "run_sample",
        ],
    },
)
