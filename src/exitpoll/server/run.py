"""Run a server until it is told to end: SIGTERM and SIGINT drain it, SIGHUP reads the policies again."""

from __future__ import annotations

import asyncio
import logging
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
        listener: What `listen` returns.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    with listener:
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
        timeout_graceful_shutdown=max(1, round(service.settings.drain_timeout)),
    )
    return DrainingServer(config, service)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address, or refuse it in one line.

    Args:
        host: The address.
        port: The port; 0 for any that is free.

    Returns:
        The socket.
    """
    if not 0 <= port < 1 << 16:
        raise InputError(f"port {port} must be between 0 and 65535", options=["port"])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from error
