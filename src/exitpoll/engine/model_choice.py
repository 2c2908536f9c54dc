"""Which model, runtime and policy a job uses, in a form that other processes can load."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from exitpoll.decide.policy import Policy
from exitpoll.engine.engine import Engine
from exitpoll.engine.loading import default_runtime, find_folder, policy_of, source_of
from exitpoll.errors import InputError


@dataclass(frozen=True)
class ModelChoice:
    """A model folder with the runtime and device that run it."""

    folder: str  # absolute, or a name on the hub
    runtime: str | None
    device: str = "auto"

    @classmethod
    def of(cls, folder: str | Path, runtime: str | None = None, device: str = "auto") -> ModelChoice:
        """Choose a model.

        Args:
            folder: As for `Engine.load`.
            runtime: As for `Engine.load`.
            device: As for `Engine.load`.
        """
        place = str(Path(folder).resolve()) if Path(folder).is_dir() else str(folder)
        return cls(place, runtime or default_runtime(folder), device)

    @property
    def fingerprint(self) -> str:
        """The hash of the weights; read from the folder, which states it."""
        return str(source_of(find_folder(self.folder, self.runtime)).fingerprint)

    def own_policy(self) -> Policy | None:
        """Return the policy of the model folder; None if it has none."""
        return policy_of(self.folder, self.runtime)

    def load(self, policy: Policy | None, threads: int | None = 1, fingerprint: str | None = None) -> Engine:
        """Load the engine.

        Args:
            policy: Its policy; None for that of the model folder.
            threads: How many threads it uses.
            fingerprint: The hash that the weights must have.

        Returns:
            The engine.
        """
        engine = Engine.load(self.folder, self.runtime, policy=policy, threads=threads, device=self.device)
        if fingerprint not in (None, engine.runtime.fingerprint):
            raise InputError(f"'{self.folder}' has other weights than when the job was planned; restore them")
        return engine


def fingerprint_of_policy(policy: Policy | None) -> str | None:
    """Return a hash of what a policy decides and guarantees.

    Args:
        policy: The policy; None for none.
    """
    if policy is None:
        return None
    return hashlib.sha256(json.dumps(policy.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
