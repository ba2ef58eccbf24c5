from __future__ import annotations

import io
import threading
import time

from hedgerow_local.logs import LogSink


class StuckTerminal(io.StringIO):
    """Accepts nothing until `release` is set, as a terminal after Ctrl-S."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def write(self, text: str) -> int:
        self.release.wait(10)
        return super().write(text)


def test_lines_carry_where_they_come_from():
    stream = io.StringIO()
    sink = LogSink(stream)
    sink.put("worker 1", "hello")
    sink.close()
    assert stream.getvalue() == "worker 1  | hello\n"


def test_a_stuck_terminal_never_makes_the_caller_wait():
    stream = StuckTerminal()
    sink = LogSink(stream)
    begin = time.monotonic()
    for index in range(5000):
        sink.put("worker 1", f"line {index}")
    assert time.monotonic() - begin < 2.0
    stream.release.set()
    sink.close()
    assert "log lines were dropped" in stream.getvalue()


def test_a_reader_that_went_away_is_not_an_error():
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    sink = LogSink(Broken())
    sink.put("up", "one")
    sink.put("up", "two")
    sink.close()
    assert not sink._thread.is_alive()
