"""What one gateway takes on at once. Over it: 429 with a hint, before any work is done."""

from __future__ import annotations

from hedgerow_shared.errors import OverloadedError, TooLargeError

_RETRY_S = 0.2


class Gate:
    """Counts requests and body bytes between `enter` and `leave`."""

    def __init__(self, *, max_body_bytes: int, max_requests: int, max_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.requests = 0
        self.bytes = 0

    def enter(self, size: int) -> None:
        """Take a request of `size` body bytes on. Raises TooLargeError or OverloadedError."""
        if size > self.max_body_bytes:
            raise TooLargeError(
                f"the body has {size} bytes; the limit is {self.max_body_bytes} "
                "(--max-body-bytes): send fewer inputs at a time"
            )
        # A lone request always fits: refusing it for its size would refuse it for ever.
        full = self.requests and self.bytes + size > self._max_bytes
        if self.requests >= self._max_requests or full:
            raise OverloadedError(
                f"the gateway is busy with {self.requests} requests of {self.bytes} bytes",
                retry_after_s=_RETRY_S,
            )
        self.requests += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        self.requests -= 1
        self.bytes -= size
        assert self.requests >= 0 and self.bytes >= 0, "every leave has its enter"
