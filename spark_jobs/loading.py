"""Spark application: load mapped rows into the destinations."""

from __future__ import annotations

import argparse
import logging
import sys

from waybill.errors import WaybillError
from waybill.loading.spark import run_loading
from waybill.settings import Settings

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="default", help="virtual cluster")
    parser.add_argument("--epoch", type=int, help="of this start; without: it takes the next one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        run_loading(Settings(), cluster=arguments.cluster, epoch=arguments.epoch)
    except WaybillError as error:
        sys.exit(f"loading stops: {error}")
