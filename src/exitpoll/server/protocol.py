"""uvicorn's HTTP protocol, with limits on clients that send headers slowly, or do not read what they asked for."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from exitpoll.server.settings import ServerSettings

# Seconds for a request to come when the server ends: on a connection that has had none yet, or has just begun one; and
# on an idle one, where it may be on its way.
GRACE, IDLE_GRACE = 1.0, 0.1
MOST_HEADER_BYTES = 1 << 16  # in a row that are not of a body: headers, trailers, those of the next request


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
        self._is_reading = False  # a request, from its first byte to the end of its body
        self._loose_bytes = 0  # since the last byte of a body
        self._is_ending = False  # whether the next request is the last

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
        """Read on; what follows a request, read to its end, is the next one."""
        if not self._is_reading:
            self._await_headers()
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MOST_HEADER_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Let the request run."""
        self._is_reading = True
        self._end_header_timer()
        super().on_headers_complete()
        if self._is_ending and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Hand on a part of the body."""
        self._loose_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._is_reading, self._loose_bytes = False, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._end_write_timer()
        self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._end_write_timer()
        super().resume_writing()

    def shutdown(self) -> None:
        """End after the request under way, or one that is about to come: what was accepted is answered, not cut off."""
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
            return
        self._is_ending = True
        grace = GRACE if self.cycle is None or self._loose_bytes else IDLE_GRACE
        self.loop.call_later(grace, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """Close a connection on which no request came."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, in the end even if the last response has not been read."""
        super().timeout_keep_alive_handler()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def _await_headers(self) -> None:
        """Begin to wait for headers, unless they are awaited already."""
        if self._header_timer is None and self.header_timeout:
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
