"""Lines that break, to put between a client and a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class LossyConnection:
    """A line to the server that breaks after so many bytes of an answer, or instead of so many answers."""

    def __init__(self, url: str, *, lasts_bytes: float = float("inf")) -> None:
        self._where, self._lasts_bytes = urlsplit(url), lasts_bytes
        self.answers_lost = self.breaks = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        sending = asyncio.create_task(self._pass_on(reader, there_writer))
        left = self._lasts_bytes
        try:
            while left > 0 and (data := await there_reader.read(int(min(left, 65536)))):
                if self.answers_lost > 0:
                    self.answers_lost -= 1
                    return
                writer.write(data)
                left -= len(data)
            self.breaks += left == 0
        finally:
            sending.cancel()
            there_writer.close()
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()
