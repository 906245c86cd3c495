"""The loading application, whose loads executors carry out where Spark has any."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.loading.spark.application import run_loading as run_loading
    from waybill.loading.spark.executors import ExecutorLoads as ExecutorLoads

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "application": ["run_loading"],
        "executors": ["ExecutorLoads"],
    },
)
