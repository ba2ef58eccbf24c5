"""The state machine of graphs, on a fake device that only counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow_engine import buckets
from hedgerow_engine.graphs import CaptureError, GraphRunner, Key


@dataclass
class FakeGraph:
    key: Key
    log: list[str]

    def replay(self) -> str:
        self.log.append(f"replay {self.key.tokens}")
        return "replayed"

    def reset(self) -> None:
        self.log.append(f"reset {self.key.tokens}")


@dataclass
class FakeForward:
    log: list[str] = field(default_factory=list)
    fail: bool = False

    def eager(self, key: Key) -> str:
        self.log.append(f"eager {key.tokens}")
        return "eager"

    def capture(self, key: Key) -> tuple[FakeGraph, str]:
        if self.fail:
            raise CaptureError("out of memory")
        self.log.append(f"capture {key.tokens}")
        return FakeGraph(key, self.log), "captured"


def test_first_hit_is_eager_second_captures_later_ones_replay() -> None:
    forward = FakeForward()
    runner = GraphRunner[str](forward, limit=4, max_tokens=100)
    assert [runner.run(Key(16, 1), 16) for _ in range(4)] == [
        "eager",
        "captured",
        "replayed",
        "replayed",
    ]
    assert (runner.counters.eager, runner.counters.captured, runner.counters.replayed) == (1, 1, 2)


def test_shapes_do_not_share_hits() -> None:
    runner = GraphRunner[str](FakeForward(), limit=4, max_tokens=100)
    keys = [Key(16, 1), Key(16, 2), Key(32, 1), Key(16, 1, ("score",))]
    assert {runner.run(key, key.tokens) for key in keys} == {"eager"}


def test_a_replay_above_twice_the_tokens_is_refused() -> None:
    runner = GraphRunner[str](FakeForward(), limit=4, max_tokens=100)
    for _ in range(3):
        runner.run(Key(64, 1), 64)
    assert runner.run(Key(64, 1), 31) == "eager"
    assert runner.run(Key(64, 1), 32) == "replayed"
    assert runner.counters.refused == 1


def test_passes_above_the_inflection_point_are_never_captured() -> None:
    runner = GraphRunner[str](FakeForward(), limit=4, max_tokens=100)
    assert {runner.run(Key(128, 1), 128) for _ in range(5)} == {"eager"}


def test_the_least_recently_used_graph_is_reset_and_may_return() -> None:
    forward = FakeForward()
    runner = GraphRunner[str](forward, limit=2, max_tokens=100)
    for tokens in (1, 1, 2, 2, 1, 3, 3):
        runner.run(Key(tokens, 1), tokens)
    assert forward.log[-1] == "reset 2" and runner.counters.evicted == 1
    assert runner.run(Key(1, 1), 1) == "replayed"
    assert runner.run(Key(2, 1), 2) == "captured"


def test_a_failed_capture_is_answered_eagerly_and_counted() -> None:
    runner = GraphRunner[str](FakeForward(fail=True), limit=4, max_tokens=100)
    assert [runner.run(Key(8, 1), 8) for _ in range(3)] == ["eager"] * 3
    assert runner.counters.capture_failed == 2


def test_warming_counts_as_the_first_hit_but_not_as_a_pass() -> None:
    runner = GraphRunner[str](FakeForward(), limit=4, max_tokens=100)
    runner.warm(Key(8, 1))
    assert runner.counters.eager == 0
    assert runner.run(Key(8, 1), 8) == "captured"


def test_buckets_hold_their_tokens_and_stay_within_twice() -> None:
    for tokens in range(1, 3000):
        cpu, cuda = buckets.cpu_tokens(tokens), buckets.cuda_tokens(tokens)
        assert tokens <= cpu <= 1.25 * tokens and tokens <= cuda
        assert cpu == tokens if tokens <= 64 else cpu % 16 == 0
        assert cuda % 16 == 0 and (tokens < 16 or not buckets.too_padded(tokens, cuda))
        assert tokens <= buckets.slots(tokens) < 2 * tokens
