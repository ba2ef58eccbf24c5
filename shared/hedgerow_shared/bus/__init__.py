"""The bus: connect, publish, request, subscribe, barrier, close. Only this package imports nats.

nats-py has traps that lose replies, deafen a connection or close it for good
(docs/decisions/0001-0004). Everything else of Hedgerow talks to `Bus` and meets none of them.
"""

from hedgerow_shared.bus.client import Bus
from hedgerow_shared.bus.message import Message
from hedgerow_shared.bus.options import BusOptions
from hedgerow_shared.bus.subscription import Subscription

__all__ = ["Bus", "BusOptions", "Message", "Subscription"]
