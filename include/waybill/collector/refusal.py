"""A request that is not taken, and what its sender is told."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """Ends the handling of a request.

    Args:
        status: of the answer.
        code: a stable name of the reason.
        message: what is wrong, and what to do.
        retry_after_s: when to send again; None: not as it is.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
