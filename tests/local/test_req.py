"""What `hedgerow req` says when no answer comes."""

from __future__ import annotations

import logging
import socket

import pytest

from hedgerow_local.req import req
from hedgerow_shared.bus import BusOptions, dial
from hedgerow_shared.errors import DeadlineError, ForbiddenError, HedgerowError, NoWorkerError


class RefusingBus:
    """Logs and raises, as the real one does for a publish that its user may not do."""

    def __init__(self, error: HedgerowError) -> None:
        self._error = error

    async def request(self, subject, data, *, timeout_s, headers):
        logging.getLogger("hedgerow.bus").warning(self._error.message)
        raise self._error

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NoWorkerError("nobody listens on foo.bar"), "hedgerow: nobody listens on foo.bar"),
        (
            ForbiddenError("this user may not publish to foo.bar"),
            "hedgerow: this user may not publish to foo.bar",
        ),
        (DeadlineError("no reply within 1 s"), "hedgerow: foo.bar: no reply within 1 s"),
    ],
)
async def test_a_refusal_is_one_line_that_names_the_subject_once(error, line, monkeypatch, capsys):
    async def connect(options):
        return RefusingBus(error)

    monkeypatch.setattr("hedgerow_local.req.Bus.connect", connect)
    monkeypatch.setattr(logging.getLogger("hedgerow.bus"), "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    status = await req("foo.bar", "{}", BusOptions(url="x"), timeout_s=1.0, use_msgpack=False)
    assert status == 1
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_host_that_cannot_be_resolved_is_called_that():
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    text = dial._explain("foo", BusOptions(url="foo"), error)
    assert "cannot connect to foo" in text
    assert "the host cannot be resolved: Name or service not known" in text
    assert "Unknown error" not in text
