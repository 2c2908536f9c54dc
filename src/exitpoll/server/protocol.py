"""uvicorn's HTTP protocol, with limits on clients that send headers slowly, or do not read what they asked for."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from exitpoll.server.settings import ServerSettings

MOST_HEADER_BYTES = 1 << 16  # that arrive before the headers of a request are complete


class LimitedProtocol(HttpToolsProtocol):
    """A connection that is closed if the headers of a request take too long, or if nobody reads its response."""

    def __init__(self, *given: Any, header_timeout: float, write_timeout: float, **named: Any) -> None:
        """Prepare a connection.

        Args:
            given: For uvicorn.
            header_timeout: Seconds from the first byte of a request, or the connection, to the end of the headers; 0
                for no limit.
            write_timeout: Seconds in which a client must read something.
            named: For uvicorn.
        """
        super().__init__(*given, **named)
        self.header_timeout, self.write_timeout = header_timeout, write_timeout
        self._header_timer: asyncio.TimerHandle | None = None  # while headers are awaited
        self._write_timer: asyncio.TimerHandle | None = None  # while nothing can be written
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the headers of the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._end_header_timer()
        self._end_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; what follows a response is the next request."""
        if self.cycle is not None and self.cycle.response_complete:
            self._await_headers()
        super().data_received(data)
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MOST_HEADER_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Let the request run."""
        self._end_header_timer()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._end_write_timer()
        self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._end_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, in the end even if the last response has not been read."""
        super().timeout_keep_alive_handler()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def _await_headers(self) -> None:
        """Begin to wait for headers, unless they are awaited already."""
        if self._header_timer is None and self.header_timeout:
            self._header_bytes = 0
            self._header_timer = self.loop.call_later(self.header_timeout, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus) -> None:
        """Close a connection whose request is not worth waiting for."""
        self._end_header_timer()
        if not self.transport.is_closing():
            lines = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(lines.encode())
            self.transport.close()

    def _end_header_timer(self) -> None:
        """Wait for headers no more."""
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_write_timer(self) -> None:
        """Wait for the client no more."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def protocol_for(settings: ServerSettings) -> partial[LimitedProtocol]:
    """Return what uvicorn makes connections with.

    Args:
        settings: The limits.

    Returns:
        The protocol; reading a response may take as long as sending a body.
    """
    return partial(LimitedProtocol, header_timeout=settings.header_timeout, write_timeout=settings.body_timeout)
