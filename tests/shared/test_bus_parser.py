"""The stream from the server, cut anywhere and bent anyhow."""

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats import errors as nats_errors

from hedgerow_shared.bus.message import Message, decode_headers, encode_headers
from hedgerow_shared.bus.parser import MAX_LINE_BYTES, Parser
from hedgerow_shared.errors import ClientError


class Heard:
    """Ten lines of client: it writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.sinks = {1: self.events.append}

    async def on_ping(self) -> None:
        self.events.append("PING")

    async def on_pong(self) -> None:
        self.events.append("PONG")

    async def on_err(self, text: str) -> None:
        self.events.append(("ERR", text))

    async def on_info(self, info: dict[str, Any]) -> None:
        self.events.append(("INFO", info))

    async def on_msg(self, *message: Any) -> None:
        self.events.append(message)


async def hear(*pieces: bytes) -> list[Any]:
    heard = Heard()
    parser = Parser(heard)
    for piece in pieces:
        await parser.parse(piece)
    return heard.events


_STREAM = (
    b'INFO {"max_payload":1048576}\r\nPING\r\n'
    b"MSG a.b 1 5\r\nhello\r\n"
    b"MSG a.b 1 _INBOX.x.1 0\r\n\r\n"
    b"HMSG a.b 1 r 18 20\r\nNATS/1.0\r\nk: v\r\n\r\nhi\r\n"
    b"HMSG a.b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"MSG a.b 1 6\r\nMSG\r\n1\r\n"
    b"MSG js.x 9 r 2\r\nok\r\n"
    b"-ERR 'Permissions Violation for Publish to \"X\"'\r\nPONG\r\n+OK\r\n"
)
_EVENTS = [
    ("INFO", {"max_payload": 1048576}),
    "PING",
    Message("a.b", b"hello"),
    Message("a.b", b"", "_INBOX.x.1"),
    Message("a.b", b"hi", "r", {"k": "v"}),
    Message("a.b", b"", "", {"Status": "503"}),
    Message("a.b", b"MSG\r\n1"),
    (9, b"js.x", b"r", b"ok", b""),
    ("ERR", "'permissions violation for publish to \"x\"'"),
    "PONG",
]


async def test_every_operation_is_read():
    assert await hear(_STREAM) == _EVENTS


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
async def test_it_does_not_matter_where_the_stream_is_cut(cuts):
    edges = [0, *sorted(cuts), len(_STREAM)]
    assert await hear(*(_STREAM[a:b] for a, b in itertools.pairwise(edges))) == _EVENTS


async def test_byte_by_byte_is_the_same():
    assert await hear(*(_STREAM[i : i + 1] for i in range(len(_STREAM)))) == _EVENTS


@pytest.mark.parametrize(
    "bad",
    [
        b"MSG a.b 1 re\x0bply 2\r\nhi\r\n",
        b"MSG a.b 1 re\x0cply 2\r\nhi\r\n",
        b"MSG a.b 1 re\rply 2\r\nhi\r\n",
        b"MSG a.\x00 1 2\r\nhi\r\n",
        b"MSG a.\xff 1 2\r\nhi\r\n",
        b"MSG a.b 1 \xff\xfe 2\r\nhi\r\n",
        b"HMSG a.b 1 4 6\r\nabcdhi\r\n",
        b"HMSG a.b 1 r 8 10\r\nHTTP/1.1hi\r\n",
    ],
    ids=[
        "vertical tab in reply",
        "form feed in reply",
        "carriage return in reply",
        "NUL in subject",
        "subject not UTF-8",
        "reply not UTF-8",
        "headers too short",
        "headers of another protocol",
    ],
)
async def test_a_message_that_is_not_readable_costs_only_itself(bad):
    good = b"MSG a.b 1 2\r\nok\r\n"
    assert await hear(good + bad + good) == [Message("a.b", b"ok")] * 2


@pytest.mark.parametrize(
    "stream",
    [
        b"HELLO\r\n",
        b"MSG a.b 1 x\r\n",
        b"MSG a.b one 2\r\n",
        b"MSG a.b 1 -2\r\n",
        b"MSG 2\r\n",
        b"MSG a b c d e 2\r\n",
        b"HMSG a.b 1 9 2\r\n",
        b"INFO {\r\n",
    ],
)
async def test_a_stream_that_makes_no_sense_is_a_protocol_error(stream):
    with pytest.raises(nats_errors.ProtocolError):
        await hear(stream)


async def test_a_line_without_an_end_does_not_fill_the_memory():
    with pytest.raises(nats_errors.ProtocolError):
        await hear(*[b"x" * 65536] * (MAX_LINE_BYTES // 65536 + 2))


@given(st.binary(max_size=200))
async def test_random_bytes_are_a_protocol_error_or_nothing(noise):
    with contextlib.suppress(nats_errors.ProtocolError):
        await hear(noise, b"\r\n")


async def test_a_sink_that_raises_does_not_stop_the_reader():
    heard = Heard()
    heard.sinks[1] = lambda _: 1 / 0
    heard.sinks[2] = heard.events.append
    await Parser(heard).parse(b"MSG a 1 0\r\n\r\nMSG a 2 0\r\n\r\n")
    assert heard.events == [Message("a", b"")]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9-]{1,20}", fullmatch=True).filter(lambda k: k != "Status"),
        st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=30).map(str.strip),
        max_size=5,
    )
)
def test_headers_round_trip(headers):
    assert decode_headers(encode_headers(headers)) == headers


def test_a_line_break_in_a_header_value_cannot_add_a_header():
    assert decode_headers(encode_headers({"a": "1\r\nb: 2"})) == {"a": "1 b: 2"}


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é"])
def test_a_header_name_that_is_no_token_is_refused(name):
    with pytest.raises(ClientError, match="header name"):
        encode_headers({name: "x"})
