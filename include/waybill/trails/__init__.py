"""Where an event is: questions, and trails as their answers.

question   what may be asked: ids, a primary key; answer: all trails of a question
trail      one event's: its traces in legs, which of them are of which copy (copies), a verdict in
           words (verdict), and what the tracker knows beside them (tracker_facts)
queries    questions in the tracker: asked, claimed, answered, cancelled; runner: who works on them
service    what pages and commands ask for
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.trails.queries import Asked as Asked
    from waybill.trails.queries import TooManyQuestionsError as TooManyQuestionsError
    from waybill.trails.queries import expire as expire
    from waybill.trails.question import MOST_ID_CHARS as MOST_ID_CHARS
    from waybill.trails.question import MOST_IDS as MOST_IDS
    from waybill.trails.question import MOST_KEY_CHARS as MOST_KEY_CHARS
    from waybill.trails.question import Question as Question
    from waybill.trails.question import TrailRequest as TrailRequest
    from waybill.trails.question import ask_for_ids as ask_for_ids
    from waybill.trails.question import ask_for_key as ask_for_key
    from waybill.trails.question import ids_in as ids_in
    from waybill.trails.question import parsed_moment as parsed_moment
    from waybill.trails.runner import Runner as Runner
    from waybill.trails.service import TrailService as TrailService
    from waybill.trails.tracker_facts import asked_by as asked_by
    from waybill.trails.trail import TrailBooks as TrailBooks

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "queries": ["Asked", "TooManyQuestionsError", "expire"],
        "question": [
            "TrailRequest",
            "MOST_IDS",
            "MOST_ID_CHARS",
            "MOST_KEY_CHARS",
            "Question",
            "ask_for_ids",
            "ask_for_key",
            "ids_in",
            "parsed_moment",
        ],
        "runner": ["Runner"],
        "service": ["TrailService"],
        "tracker_facts": ["asked_by"],
        "trail": ["TrailBooks"],
    },
)
