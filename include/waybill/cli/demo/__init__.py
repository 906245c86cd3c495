"""``waybill demo``: the main job on real data, done through Airflow and this very CLI.

The state of a demo is one small file in the state folder. A demo that was cut off is resumed: every
step can be done twice. One that ended is not built upon: its data is wiped and the demo starts
clean.
"""

from waybill.cli.demo.command import demo

__all__ = ["demo"]
