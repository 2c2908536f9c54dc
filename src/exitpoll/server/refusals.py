"""Refusals: what is wrong with a request, or why it could not be answered, with the status that says so."""

from __future__ import annotations

from collections.abc import Mapping


class RefusalError(Exception):
    """A request that is not answered.

    The kinds are those of text-embeddings-inference: Validation, Empty, Tokenizer, Overloaded, Backend, Unhealthy; and
    Authentication, NotFound and Timeout, which it does not have.
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Put the message on one line.

        Args:
            status: The status code of the response.
            kind: A short name for programs.
            message: What was wrong, and what would be right.
            headers: Of the response.
        """
        written = message.encode(errors="backslashreplace").decode()  # what clients send may be no Unicode
        super().__init__(" ".join(written.split()))
        self.status, self.kind, self.headers = status, kind, dict(headers or {})


def invalid(message: str, status: int = 422) -> RefusalError:
    """Return the refusal of a request whose content is wrong."""
    return RefusalError(status, "Validation", message)


def too_large(message: str) -> RefusalError:
    """Return the refusal of a request that is larger than a limit."""
    return RefusalError(413, "Validation", message)


def overloaded(message: str, seconds: float) -> RefusalError:
    """Return the refusal of a request for which there is no room now.

    429 and not 503: a client in use repeats a request at once, and without end, after 503.
    """
    wait = min(max(round(seconds + 0.5), 1), 60)
    return RefusalError(429, "Overloaded", message, {"Retry-After": str(wait)})


def unavailable(message: str) -> RefusalError:
    """Return the refusal of a server that starts or ends."""
    return RefusalError(503, "Unhealthy", message, {"Connection": "close"})


def backend(message: str, status: int = 424) -> RefusalError:
    """Return the refusal of a request that the model could not answer."""
    return RefusalError(status, "Backend", message)
