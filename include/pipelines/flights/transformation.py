"""Turn the clock times of a flight into moments.

``dep_time`` and ``arr_time`` are what the clock on the wall said: 517 is 05:17, in New York at
departure, at the destination on arrival. The date belongs to the scheduled departure; a delay may
carry the departure past midnight, and an arrival is the first such clock time after the departure.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from waybill.errors import ParkError

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


def transform(event):
    flight = event.data

    clock = flight["dep_time"]
    hour, minute = clock // 100, clock % 100
    left = datetime(flight["year"], flight["month"], flight["day"], hour, minute, tzinfo=NEW_YORK)
    if clock < flight["sched_dep_time"] and flight["dep_delay"] > 0:
        left += DAY

    clock = flight["arr_time"]
    if clock is None:
        raise ParkError("record_incomplete", "left but has no arrival time", where="arr_time")
    hour, minute = clock // 100, clock % 100
    came = datetime(left.year, left.month, left.day, hour, minute, tzinfo=ZONES[flight["dest"]])
    departed_at, arrived_at = left.astimezone(UTC), came.astimezone(UTC)
    if arrived_at <= departed_at:
        arrived_at = (came + DAY).astimezone(UTC)

    flight["departed_at"] = departed_at
    flight["arrived_at"] = arrived_at
    flight["status"] = "flown"
    return event
