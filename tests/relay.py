"""A TCP relay that stands between a client and a server, and can be cut, held and listened to."""

from __future__ import annotations

import asyncio


class Relay:
    """Forwards 127.0.0.1:`port` to the server at `target_port`.

    seen: every byte the clients sent
    hold_to_client / hold_to_server: while set, nothing passes in that direction, as in a
        partition: no FIN, no RST, and what is sent piles up in the kernel of the sender
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._open = {"client": asyncio.Event(), "server": asyncio.Event()}
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = bytearray()
        self.connections = 0
        for gate in self._open.values():
            gate.set()

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=4096)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def hold(self, *, to_client: bool = False, to_server: bool = False) -> None:
        if to_client:
            self._open["client"].clear()
        if to_server:
            self._open["server"].clear()

    def release(self) -> None:
        for gate in self._open.values():
            gate.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, up_writer]
        for source, sink, gate, seen in (
            (reader, up_writer, self._open["server"], self.seen),
            (up_reader, writer, self._open["client"], None),
        ):
            task = asyncio.ensure_future(_pump(source, sink, gate, seen))
            self._tasks.add(task)


async def _pump(
    source: asyncio.StreamReader,
    sink: asyncio.StreamWriter,
    gate: asyncio.Event,
    seen: bytearray | None,
) -> None:
    try:
        while data := await source.read(4096):
            await gate.wait()
            if seen is not None:
                seen += data
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()
