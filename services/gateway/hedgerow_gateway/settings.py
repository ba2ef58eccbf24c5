"""Every switch of a gateway process, with the line `--help` prints for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from hedgerow_gateway.bulk.streams import StreamOptions
from hedgerow_gateway.dispatch import DispatchOptions
from hedgerow_gateway.schema import Rules
from hedgerow_gateway.splitter import ChunkLimits
from hedgerow_shared.bus import BusOptions
from hedgerow_shared.service_settings import Count, Seconds, ServiceSettings
from hedgerow_shared.subjects import INBOXES

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """Filled by `hedgerow_shared.config.load`: flag > environment > file > default."""

    token_ids: Literal["off", "native"] = "off"
    gateway_id: str = ""

    host: str = "127.0.0.1"
    port: Port = 8080
    reuse_port: bool = False

    reply_prefix: tuple[str, ...] = INBOXES

    ttl_s: Seconds = 30.0
    max_ttl_s: Seconds = 600.0
    max_body_bytes: Count = 64 * 1024 * 1024
    max_inputs: Count = 8192
    max_inflight_requests: Count = 4096
    max_inflight_bytes: Count = 256 * 1024 * 1024
    tokenize_threads: Annotated[int, msgspec.Meta(ge=0)] = 0

    attempt_floor_s: Seconds = 1.0
    attempt_unknown_s: Seconds = 10.0
    window_tokens: Count = 16_384
    fleet_poll_s: Seconds = 2.0
    coalesce: Literal["on", "off"] = "on"
    cache_mb: Annotated[int, msgspec.Meta(ge=0)] = 0

    bulk: Literal["on", "off"] = "on"
    bulk_chunk_sequences: Count = 8
    bulk_chunk_tokens: Count = 4096
    bulk_ack_wait_s: Annotated[float, msgspec.Meta(ge=1)] = 15.0
    bulk_max_bytes: Count = 1 << 30
    bulk_result_max_bytes: Count = 2 << 30
    bulk_max_age_s: Seconds = 7 * 86_400.0
    bulk_result_max_age_s: Seconds = 7 * 86_400.0
    bulk_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1

    drain_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    __help__: ClassVar[Mapping[str, str]] = {
        **ServiceSettings.__help__,
        "token_ids": "native: take token ids of this very model as input; off: refuse them",
        "gateway_id": "this gateway's name on the bus; random if empty",
        "host": "address to listen on",
        "port": "port to listen on; 0 takes a free one",
        "reuse_port": "share the port with other gateways (SO_REUSEPORT)",
        "reply_prefix": "requests are answered only on subjects that begin like this; repeatable",
        "ttl_s": "time a request may take when its caller names none (Hedgerow-Ttl-Ms)",
        "max_ttl_s": "the longest time a caller may name",
        "max_body_bytes": "larger request bodies are answered 413",
        "max_inputs": "texts or documents in one request",
        "max_inflight_requests": "requests at once; more are answered 429",
        "max_inflight_bytes": "bytes of request bodies at once; more are answered 429",
        "tokenize_threads": "threads for large texts; 0 = cores - 1",
        "attempt_floor_s": "a silent worker is given this long at least before another is asked",
        "attempt_unknown_s": "the same before anything is known of this model's latency",
        "window_tokens": "tokens of one request in flight, for each worker of its model",
        "fleet_poll_s": "how often workers are looked for",
        "coalesce": "off: compute the same text again for each who asks for it at the same time",
        "cache_mb": "megabytes for vectors of texts that were asked before; 0: none are kept",
        "bulk": "off: take no jobs (they need a NATS server with JetStream)",
        "bulk_chunk_sequences": "texts in one piece of a job; 16 where every write is synced",
        "bulk_chunk_tokens": "tokens in one; 8192 where every write is synced",
        "bulk_ack_wait_s": "a worker that is silent about a piece loses it to another one then",
        "bulk_max_bytes": "of pieces that wait; over it jobs are answered 503",
        "bulk_result_max_bytes": "of results that nobody released; over it workers wait",
        "bulk_max_age_s": "a piece that no worker took for this long is dropped",
        "bulk_result_max_age_s": "results and the record of a job are kept this long",
        "bulk_replicas": "copies of each stream in a cluster of NATS servers",
        "drain_delay_s": "after SIGTERM: keep accepting this long while /health/ready says 503",
    }

    def bus_options(self, gateway_id: str, use: str = "") -> BusOptions:
        return self.connection(f"hedgerow-gateway-{gateway_id}", use)

    def dispatch_options(self) -> DispatchOptions:
        return DispatchOptions(
            attempt_floor_s=self.attempt_floor_s,
            attempt_unknown_s=self.attempt_unknown_s,
            window_tokens=self.window_tokens,
        )

    def stream_options(self) -> StreamOptions:
        return StreamOptions(
            replicas=self.bulk_replicas,
            max_bytes=self.bulk_max_bytes,
            result_max_bytes=self.bulk_result_max_bytes,
            max_age_s=self.bulk_max_age_s,
            result_max_age_s=self.bulk_result_max_age_s,
            ack_wait_s=self.bulk_ack_wait_s,
        )

    def bulk_limits(self) -> ChunkLimits:
        return ChunkLimits(self.bulk_chunk_sequences, self.bulk_chunk_tokens)

    def rules(self) -> Rules:
        return Rules(native_ids=self.token_ids == "native", max_inputs=self.max_inputs)
