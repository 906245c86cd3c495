"""Turn the clock times of a flight into moments.

``dep_time`` and ``arr_time`` are what the clock on the wall said: 517 is 05:17, in New York at
departure, at the destination on arrival; 2400 is the midnight that ends the day. The date belongs
to the scheduled departure; a delay may carry the departure past midnight, and an arrival is the
first such clock time after the departure.

A flight without ``dep_time`` was cancelled; one that left and has no ``arr_time`` was diverted or
turned back. Their moments stay null.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)
NEW_YORK = ZoneInfo("America/New_York")
AIRPORTS = {
    "America/New_York": """
        ACK ALB ATL AVL BDL BGR BOS BTV BUF BWI CAE CAK CHO CHS CLE CLT CMH CRW CVG DAY DCA DTW
        EYW FLL GRR GSO GSP IAD ILM IND JAX LEX LGA MCO MHT MIA MVY MYR ORF PBI PHL PIT PVD PWM
        RDU RIC ROC RSW SAV SBN SDF SRQ SYR TPA TVC TYS""",
    "America/Chicago": """
        AUS BHM BNA DFW DSM HOU IAH MCI MDW MEM MKE MSN MSP MSY OKC OMA ORD SAT STL TUL XNA""",
    "America/Denver": "ABQ BZN DEN EGE HDN JAC MTJ SLC",
    "America/Phoenix": "PHX",
    "America/Los_Angeles": "BUR LAS LAX LGB OAK PDX PSP SAN SEA SFO SJC SMF SNA",
    "America/Anchorage": "ANC",
    "America/Puerto_Rico": "BQN PSE SJU STT",
    "Pacific/Honolulu": "HNL",
}
ZONES = {code: ZoneInfo(zone) for zone, codes in AIRPORTS.items() for code in codes.split()}


def on_the_clock(year, month, day, clock, zone):
    """Return when a clock in a zone shows ``clock``, on or at the end of a day."""
    if clock == 2400:
        return datetime(year, month, day, tzinfo=zone) + DAY
    return datetime(year, month, day, clock // 100, clock % 100, tzinfo=zone)


def transform(event):
    flight = event.data
    flight["departed_at"] = flight["arrived_at"] = None
    clock = flight["dep_time"]
    if clock is None:
        flight["status"] = "cancelled"
        return event

    left = on_the_clock(flight["year"], flight["month"], flight["day"], clock, NEW_YORK)
    if clock < flight["sched_dep_time"] and flight["dep_delay"] > 0:
        left += DAY
    flight["departed_at"] = departed_at = left.astimezone(UTC)
    clock = flight["arr_time"]
    if clock is None:
        flight["status"] = "diverted"
        return event

    came = on_the_clock(left.year, left.month, left.day, clock, ZONES[flight["dest"]])
    arrived_at = came.astimezone(UTC)
    if arrived_at <= departed_at:
        arrived_at = (came + DAY).astimezone(UTC)
    flight["arrived_at"] = arrived_at
    flight["status"] = "flown"
    return event
