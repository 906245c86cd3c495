"""Who may do what, what is personal, and who did what: grants, personal fields, the audit log."""

from typing import TYPE_CHECKING

from waybill.lazy import lazy_exports

if TYPE_CHECKING:
    from waybill.access.access_log import AccessLog as AccessLog
    from waybill.access.access_log import look_at as look_at
    from waybill.access.audit_log import Decision as Decision
    from waybill.access.audit_log import read_audit as read_audit
    from waybill.access.audit_log import required_text as required_text
    from waybill.access.audit_log import write_audit as write_audit
    from waybill.access.audit_seals import AuditSealer as AuditSealer
    from waybill.access.audit_seals import SealReport as SealReport
    from waybill.access.audit_verification import AuditReport as AuditReport
    from waybill.access.audit_verification import AuditVerifier as AuditVerifier
    from waybill.access.grants import Access as Access
    from waybill.access.grants import access_of as access_of
    from waybill.access.personal import ANY_EVENT as ANY_EVENT
    from waybill.access.personal import KEY as KEY
    from waybill.access.personal import MASK as MASK
    from waybill.access.personal import Personal as Personal
    from waybill.access.personal import field_paths as field_paths
    from waybill.access.personal import masked_fields as masked_fields
    from waybill.access.personal import personal_of as personal_of
    from waybill.access.personal import proposed_by as proposed_by
    from waybill.access.personal import same_name as same_name
    from waybill.access.personal_names import anonymous as anonymous
    from waybill.access.personal_names import likely_personal as likely_personal
    from waybill.access.personal_names import personal_or_likely as personal_or_likely
    from waybill.access.topic_rules import KafkaRules as KafkaRules
    from waybill.access.topic_rules import kafka_rules as kafka_rules

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "access_log": ["AccessLog", "look_at"],
        "audit_log": ["Decision", "read_audit", "required_text", "write_audit"],
        "audit_seals": ["AuditSealer", "SealReport"],
        "audit_verification": ["AuditReport", "AuditVerifier"],
        "grants": ["Access", "access_of"],
        "topic_rules": ["KafkaRules", "kafka_rules"],
        "personal": [
            "ANY_EVENT",
            "KEY",
            "MASK",
            "Personal",
            "field_paths",
            "masked_fields",
            "personal_of",
            "proposed_by",
            "same_name",
        ],
        "personal_names": ["anonymous", "likely_personal", "personal_or_likely"],
    },
)
