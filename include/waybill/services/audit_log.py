"""The audit log's seals: making them, and holding the log against them."""

from __future__ import annotations

from waybill.access import AuditReport, AuditSealer, AuditVerifier, SealReport
from waybill.settings import Settings
from waybill.storage import open_owned_objects, open_tracker

_WRITERS_WAIT_S = 120.0


def seal_audit_log(settings: Settings, *, pause_s: float = 0.0) -> SealReport:
    """Seal entries of the audit log that are not sealed yet; of many, a part.

    Args:
        settings: of the deployment.
        pause_s: nothing is sealed while the newest seal is younger, unless it is many entries.

    Raises:
        RetryError: a transaction that writes entries did not end; tracker or store are away.
        StopError: the store's newest seal is damaged.
    """
    objects, key = open_owned_objects(settings), _signing_key(settings)
    with open_tracker(settings.tracker) as tracker:
        sealer = AuditSealer(tracker, objects, signing_key=key, wait_s=_WRITERS_WAIT_S)
        return sealer.run(pause_s=pause_s)


def verify_audit_log(settings: Settings, *, from_seal: int = 1, expected: str = "") -> AuditReport:
    """Hold the audit log against its seals in tracker and store.

    Cost: reads the log and the seals' objects once.

    Raises:
        InputError: ``expected`` is no seal with its digest.
        NotFoundError: the tracker has no seal ``from_seal``.
        RetryError: tracker or store are away.
    """
    objects, key = open_owned_objects(settings), _signing_key(settings)
    with open_tracker(settings.tracker) as tracker:
        return AuditVerifier(tracker, objects, signing_key=key).run(
            from_seal=from_seal, expected=expected
        )


def _signing_key(settings: Settings) -> str:
    key = settings.access.audit_signing_secret
    return "" if key is None else key.get_secret_value()
