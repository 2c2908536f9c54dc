"""TextDigest: recognize the texts of a training again, without keeping them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.normalize import normalized
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.data.splits import Texts

KEPT = 16_384  # hashes of a digest, at most
HASH_BYTES = 8


@dataclass(frozen=True)
class Overlap:
    """How many of some texts are in a digest."""

    checked: int  # texts that the digest can decide on: all, or those in its sample
    shared: int  # of them, those in the digest

    @property
    def share(self) -> float:
        """The share of texts that are in the digest; an estimate where the digest is a sample."""
        return self.shared / self.checked if self.checked else 0.0

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain values, as traces keep them."""
        return {"checked": self.checked, "shared": self.shared}


@dataclass(frozen=True)
class TextDigest:
    """Hashes of texts, in constant size: of a large set those of a sample, drawn by the hash itself.

    Texts that differ only in case or white space have the same hash.
    """

    texts: int  # distinct texts
    hashes: NDArray  # (kept,) uint64: the smallest hashes, in increasing order

    @classmethod
    def of(cls, texts: Texts) -> TextDigest:
        """Compute the digest of texts.

        Args:
            texts: Single texts or pairs.

        Returns:
            Their digest.
        """
        hashes = np.unique(_hashes(texts))
        return cls(len(hashes), hashes[:KEPT])

    def overlap(self, texts: Texts) -> Overlap:
        """Count which of some texts are among those of the digest.

        Args:
            texts: Single texts or pairs.

        Returns:
            The counts, over all texts or, if the digest is a sample, over the texts that would be in the sample.
        """
        hashes = _hashes(texts)
        if self.texts > len(self.hashes):
            hashes = hashes[hashes <= self.hashes[-1]]
        return Overlap(len(hashes), int(np.isin(hashes, self.hashes).sum()))

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        content = self.hashes.astype("<u8").tobytes()
        return {"texts": self.texts, "hashes": base64.b64encode(content).decode("ascii")}

    @classmethod
    def from_dict(cls, content: object) -> TextDigest:
        """Read what `to_dict` returned.

        Args:
            content: The plain values.

        Returns:
            The digest.
        """
        if not isinstance(content, Mapping):
            raise InputError("the digest of texts must be an object with texts and hashes")
        texts, encoded = content.get("texts"), content.get("hashes")
        if not isinstance(texts, int) or not isinstance(encoded, str):
            raise InputError("the digest of texts must have a number of texts and base64 hashes")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"the hashes of the digest of texts are not base64: {error}") from error
        if len(raw) % HASH_BYTES or len(raw) > KEPT * HASH_BYTES:
            raise InputError(f"the digest of texts must have at most {KEPT} hashes of {HASH_BYTES} bytes")
        hashes = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
        if texts < len(hashes) or (texts > len(hashes) and len(hashes) < KEPT) or not (np.diff(hashes) > 0).all():
            raise InputError(f"the digest of {texts} texts has {len(hashes)} hashes that do not fit")
        return cls(texts, hashes)


def _hashes(texts: Texts) -> NDArray:
    """Hash every text: (texts,) uint64."""
    content = b"".join(map(_hash, texts))
    return np.frombuffer(content, dtype="<u8").astype(np.uint64)


def _hash(text: Text) -> bytes:
    """Hash a text, or a pair, without regard to case and white space."""
    plain = normalized(text)
    content = "\0".join(plain) if isinstance(plain, tuple) else plain
    return hashlib.blake2b(content.encode("utf-8", errors="surrogatepass"), digest_size=HASH_BYTES).digest()
