"""``python -m waybill.cli``."""

from waybill.cli import app

if __name__ == "__main__":
    app(prog_name="waybill")
