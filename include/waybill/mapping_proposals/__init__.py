"""Mappings inferred from a source, compared with those in force, and written as YAML.

Nothing is deployed here.
"""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.mapping_proposals.comparison import MappingDifference as MappingDifference
    from waybill.mapping_proposals.comparison import ShownMapping as ShownMapping
    from waybill.mapping_proposals.comparison import diff as diff
    from waybill.mapping_proposals.comparison import diff_folder as diff_folder
    from waybill.mapping_proposals.comparison import show as show
    from waybill.mapping_proposals.inference import Draft as Draft
    from waybill.mapping_proposals.inference import Proposal as Proposal
    from waybill.mapping_proposals.inference import Sample as Sample
    from waybill.mapping_proposals.inference import added_columns as added_columns
    from waybill.mapping_proposals.inference import infer as infer
    from waybill.mapping_proposals.inference import load_draft as load_draft
    from waybill.mapping_proposals.inference import take_sample as take_sample
    from waybill.mapping_proposals.mixed_columns import MixedColumn as MixedColumn
    from waybill.mapping_proposals.yaml_file import added_lines as added_lines
    from waybill.mapping_proposals.yaml_file import append_line as append_line
    from waybill.mapping_proposals.yaml_file import event_block as event_block
    from waybill.mapping_proposals.yaml_file import event_lines as event_lines
    from waybill.mapping_proposals.yaml_file import write as write

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "comparison": ["MappingDifference", "ShownMapping", "diff", "diff_folder", "show"],
        "inference": [
            "Draft",
            "Proposal",
            "Sample",
            "added_columns",
            "infer",
            "load_draft",
            "take_sample",
        ],
        "mixed_columns": ["MixedColumn"],
        "yaml_file": ["added_lines", "append_line", "event_block", "event_lines", "write"],
    },
)
