"""Who may do what, what is personal, and who did what: grants, personal fields, the audit log."""

from waybill.access.audit_log import Decision, read_audit, required_text, write_audit

__all__ = ["Decision", "read_audit", "required_text", "write_audit"]
