"""Run a server until it is told to end: SIGTERM and SIGINT drain it, SIGHUP reads the policies again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

import uvicorn

from exitpoll.errors import InputError
from exitpoll.server.app import build_app
from exitpoll.server.model_thread import SWITCH_INTERVAL
from exitpoll.server.protocol import protocol_for
from exitpoll.server.service import Service

logger = logging.getLogger("exitpoll.server")
BACKLOG = 2048  # connections that wait to be accepted


class DrainingServer(uvicorn.Server):
    """A server that first says that it is not ready, then stops listening, and answers what it has accepted."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        """Prepare a server.

        Args:
            config: Of uvicorn.
            service: What is served.
        """
        super().__init__(config)
        self.service = service
        self.loop: asyncio.AbstractEventLoop | None = None  # before it starts

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and to SIGHUP."""
        self.loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, AttributeError, ValueError, RuntimeError):  # Windows; not the main thread
            self.loop.add_signal_handler(signal.SIGHUP, self._reload)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, and end when all connections that the system had accepted are answered."""
        waiting = [sock.dup() for sock in sockets or []]  # keep connections that nobody has taken yet
        for server in self.servers:
            server.close()
        for listener in waiting:
            with listener:
                await self._take_waiting(listener)
        await super().shutdown(sockets)

    async def _take_waiting(self, listener: socket.socket) -> None:
        """Take the connections that wait to be accepted."""
        loop, config = asyncio.get_running_loop(), self.config

        def make() -> asyncio.Protocol:
            return config.http_protocol_class(  # type: ignore[call-arg, return-value]
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )

        listener.setblocking(False)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # none is left
                return
            with suppress(OSError):  # the client has gone
                await loop.connect_accepted_socket(make, connection)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end at once at the second."""
        if self.service.is_leaving or self.loop is None:
            self.force_exit = self.should_exit = True
            return
        self.service.is_leaving = True
        self.loop.call_soon_threadsafe(self.loop.call_later, self.service.settings.drain_delay, self._drain)

    def _drain(self) -> None:
        """Refuse new requests, and end when those under way are answered."""
        self.service.is_draining = self.should_exit = True

    def _reload(self) -> None:
        """Read the policies again."""
        try:
            self.service.reload()
        except (InputError, OSError) as error:
            logger.warning("the policies stay as they were: %s", error)


def serve_forever(service: Service, listener: socket.socket) -> None:
    """Serve until a signal ends it.

    Args:
        service: What is served.
        listener: What `bind` returns.
    """
    with listener:
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # another process has bound it too, and listens already
            host, port = listener.getsockname()[:2]
            raise _cannot_listen(host, port, error) from error
        sys.setswitchinterval(SWITCH_INTERVAL)
        server_of(service).run(sockets=[listener])


def server_of(service: Service) -> DrainingServer:
    """Return the server of a service, which is not started yet.

    Args:
        service: What is served.

    Returns:
        The server.
    """
    config = uvicorn.Config(
        build_app(service),
        http=protocol_for(service.settings),
        log_level="error",  # requests that are not HTTP are no news
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(service.settings.drain_timeout)),
    )
    return DrainingServer(config, service)


def bind(host: str, port: int) -> socket.socket:
    """Take an address, at which nobody is answered yet, or refuse it in one line.

    Args:
        host: The address.
        port: The port; 0 for any that is free.

    Returns:
        The socket, which does not listen: while a model is loaded, clients see that no server is there.
    """
    if not 0 <= port < 1 << 16:
        raise InputError(f"port {port} must be between 0 and 65535", options=["port"])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> InputError:
    """Return the refusal of an address."""
    return InputError(f"cannot listen at {host}, port {port}: {error.strerror or error}")
