"""One line per event; traces as the W3C writes them."""

import json
import logging
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_shared.telemetry import new_trace, parse_traceparent, setup_logging

_GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def logged(capsys):
    """`logged(json)` sets logging up; the function it returns gives the lines so far."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def start(as_json: bool):
        setup_logging("hedgerow-test", "info", as_json)
        return lambda: capsys.readouterr().err.splitlines()

    yield start
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_has_time_level_service_and_text(logged):
    lines = logged(False)
    logging.getLogger("x").warning("queue at %d", 7, extra={"fields": {"model": "minilm"}})
    (line,) = lines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING hedgerow-test queue at 7 model=minilm",
        line,
    )


def test_json_lines_hold_the_same_and_the_fields(logged):
    lines = logged(True)
    logging.getLogger("x").error("bad", extra={"fields": {"n": 3, "path": object}})
    (line,) = lines()
    event = json.loads(line)
    assert (event["level"], event["service"], event["logger"]) == ("error", "hedgerow-test", "x")
    assert (event["message"], event["n"]) == ("bad", 3)


@pytest.mark.parametrize("as_json", [False, True])
def test_neither_a_line_break_in_a_text_nor_an_exception_makes_a_second_line(logged, as_json):
    lines = logged(as_json)
    logging.getLogger("x").info("model %r\n2026-01-01 ERROR forged", "a\r\nb")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logging.getLogger("x").exception("failed")
    got = lines()
    assert len(got) == 2
    assert "ValueError" in got[1]


def test_debug_is_left_out_at_info_and_the_noise_of_libraries_too(logged):
    lines = logged(False)
    logging.getLogger("hedgerow.bus").debug("hidden")
    logging.getLogger("aiohttp.access").info("hidden")
    logging.getLogger("nats.aio.client").info("hidden")
    assert lines() == []


def test_an_unknown_level_is_refused(logged):
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("x", "loud")


def test_a_traceparent_is_read_and_written_back():
    trace = parse_traceparent(_GOOD)
    assert trace is not None
    assert trace.sampled
    assert trace.traceparent == _GOOD
    child = trace.child()
    assert child.trace_id == trace.trace_id
    assert child.span_id != trace.span_id


def test_a_newer_version_may_carry_more_and_is_answered_in_ours():
    trace = parse_traceparent(_GOOD.replace("00-4", "01-4") + "-more")
    assert trace is not None
    assert trace.traceparent == _GOOD


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        _GOOD[:-1],
        _GOOD + "-more",
        _GOOD.upper(),
        "ff" + _GOOD[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        _GOOD + "\r\nX: y",
    ],
)
def test_an_invalid_traceparent_is_none(text):
    assert parse_traceparent(text) is None


def test_a_new_trace_is_a_valid_one_and_unlike_the_last():
    a, b = new_trace(sampled=True), new_trace()
    assert parse_traceparent(a.traceparent) == a
    assert a.trace_id != b.trace_id


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text):
    trace = parse_traceparent(text)
    assert trace is None or parse_traceparent(trace.traceparent) == trace


def test_without_prometheus_client_a_worker_still_starts():
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from hedgerow_shared.telemetry import prometheus\n"
        "assert prometheus() is None"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_telemetry_does_not_load_prometheus_client_unasked():
    code = "import sys, hedgerow_shared.telemetry; assert 'prometheus_client' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
