"""What one gateway takes on at once. Over it: 429 with a hint, before any work is done."""

from __future__ import annotations

from hedgerow_shared.errors import OverloadedError, TooLargeError

_RETRY_S = 0.2


class Gate:
    """Counts requests and the bytes of their bodies. Every `enter` needs a `Pass.leave`."""

    def __init__(self, *, max_body_bytes: int, max_requests: int, max_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self.requests = 0
        self.bytes = 0

    def enter(self, size: int = 0) -> Pass:
        """Take a request on, of whose body `size` bytes are here. Raises TooLargeError or
        OverloadedError."""
        if size > self.max_body_bytes:
            raise TooLargeError(
                f"the body has {size} bytes; the limit is {self.max_body_bytes} "
                "(--max-body-bytes): send fewer inputs at a time"
            )
        if self.requests >= self._max_requests:
            raise self.busy()
        self.requests += 1
        held = Pass(self)
        try:
            held.grow(size)
        except OverloadedError:
            held.leave()
            raise
        return held

    def has_room(self, size: int, held: int) -> bool:
        """Whether a request that holds `held` bytes may hold `size` more. A lone request always
        may: refusing it for its size would refuse it for ever."""
        return self.bytes + size <= self._max_bytes or self.bytes == held

    def busy(self) -> OverloadedError:
        """The refusal of one request more."""
        return OverloadedError(
            f"the gateway is busy with {self.requests} requests of {self.bytes} bytes",
            retry_after_s=_RETRY_S,
        )


class Pass:
    """What one request has taken of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate
        self._bytes = 0

    def grow(self, size: int) -> None:
        """Hold `size` bytes more. Raises OverloadedError."""
        gate = self._gate
        assert gate is not None, "a pass that was given back holds nothing"
        if not gate.has_room(size, self._bytes):
            raise gate.busy()
        self._bytes += size
        gate.bytes += size

    def leave(self) -> None:
        """Give everything back; safe to call twice."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.requests -= 1
            gate.bytes -= self._bytes
            assert gate.requests >= 0 and gate.bytes >= 0, "every leave has its enter"
