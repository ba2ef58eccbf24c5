"""Hung steps, dead threads, and time in which the whole process stood still."""

from __future__ import annotations

import pytest

from hedgerow_scheduler.watchdog import Watchdog


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.flight: object | None = None
        self.alive = True
        self.dead: list[str] = []
        self.stalls = 0
        self.dog = Watchdog(
            oldest_flight=lambda: self.flight,
            is_alive=lambda: self.alive,
            hung_s=10.0,
            clock=lambda: self.now,
            on_dead=self.dead.append,
            on_stall=self.stalled,
        )

    def stalled(self) -> None:
        self.stalls += 1

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / self.dog.period_s)):
            self.now += self.dog.period_s
            self.dog.tick()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_step_on_the_device_beyond_the_bound_ends_the_worker(scene: Scene) -> None:
    scene.flight = object()
    scene.run(9.9)
    assert scene.dead == []
    scene.run(1.0)
    assert "10 s" in scene.dead[0]


def test_steps_that_change_are_never_hung_however_long_the_device_is_busy(scene: Scene) -> None:
    for _ in range(10):
        scene.flight = object()
        scene.run(9.0)
    scene.flight = None
    scene.run(60.0)
    assert scene.dead == []


def test_time_in_which_the_process_was_stopped_is_not_held_against_a_step(scene: Scene) -> None:
    scene.flight = object()
    scene.run(1.0)
    scene.now += 60.0
    scene.run(5.0)
    assert scene.dead == []


def test_an_engine_thread_that_ended_ends_the_worker(scene: Scene) -> None:
    scene.alive = False
    scene.run(0.25)
    assert "thread" in scene.dead[0]


def test_messages_read_after_a_stop_are_as_old_as_the_stop_until_all_are_read(scene: Scene) -> None:
    scene.run(5.0)
    assert scene.dog.age_s() == 0.0
    scene.now += 20.0
    assert scene.dog.age_s() == pytest.approx(19.75), "read before the first tick"
    scene.dog.tick()
    scene.run(1.0)
    assert scene.dog.age_s() == pytest.approx(19.75), "read after it"
    assert scene.stalls == 1
    scene.dog.refreshed()
    assert scene.dog.age_s() == 0.0


def test_a_long_start_is_no_standing_still(scene: Scene) -> None:
    scene.now += 30.0
    scene.dog.begin()
    assert scene.dog.age_s() == 0.0
    scene.run(1.0)
    assert (scene.stalls, scene.dog.age_s()) == (0, 0.0)


def test_a_loop_that_is_only_a_little_late_did_not_stand_still(scene: Scene) -> None:
    scene.now += scene.dog.period_s + 0.2
    scene.dog.tick()
    assert (scene.stalls, scene.dog.age_s()) == (0, 0.0)
