"""The policies of a server by name: policy.json and more cautious ones, those in policies/, and `full`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from exitpoll.decide.policy import Policy
from exitpoll.engine.arrivals import with_depth_cap
from exitpoll.engine.engine import Engine
from exitpoll.engine.exit_graph import check_can_run
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.models.folder import POLICY
from exitpoll.server.refusals import invalid

DEFAULT, FULL, CAUTIOUS = "default", "full", "cautious-"
FOLDER = "policies"  # in the model folder
MOST = 32  # policies
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class NamedPolicy:
    """A policy with its name."""

    name: str
    policy: Policy

    @property
    def guarantee(self) -> str | None:
        """The guarantee that its certificate states, if there is one."""
        certificate = self.policy.certificate
        return None if certificate is None or certificate.guarantee is None else str(certificate.guarantee)

    @cached_property
    def key(self) -> str:
        """The hash of the policy."""
        return hashlib.sha256(json.dumps(self.policy.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


Policies = Mapping[str, NamedPolicy]


def load_policies(model: LoadedModel, folder: Path | None, default: Policy | None = None) -> Policies:
    """Load the policies of a model, and check that they fit it.

    Those that were certified with the default policy, and are more cautious, are called cautious-1, cautious-2, ….

    Args:
        model: The model.
        folder: The folder with policy.json and policies/; None for a model that has none.
        default: The default policy, in place of policy.json.

    Returns:
        The policies by name.
    """
    never = Policy(problem_type=model.runtime.problem_type)
    if default is None:
        has_own = folder is not None and (folder / POLICY).exists()
        default = Policy.load(folder / POLICY) if folder is not None and has_own else never
    cautious = {f"{CAUTIOUS}{number}": policy for number, policy in enumerate(default.more_cautious, start=1)}
    found = {DEFAULT: default, **cautious, FULL: never}
    if folder is not None:
        for path in sorted((folder / FOLDER).glob("*.json")):
            if path.stem in found or path.stem.startswith(CAUTIOUS) or not NAME.fullmatch(path.stem):
                raise InputError(f"'{path}': a policy may not be called '{path.stem}'; rename the file")
            found[path.stem] = Policy.load(path)
    if len(found) > MOST:
        raise InputError(f"'{folder}' has {len(found)} policies; at most {MOST} can be served")
    for policy in found.values():
        Engine(model, policy)  # refuses a policy of another model, or one whose exits the model does not have
        check_can_run(model.runtime, policy)
    return {name: NamedPolicy(name, policy) for name, policy in found.items()}


def check_depth(model: LoadedModel, policy: Policy, max_depth: int) -> None:
    """Refuse a depth at which an export cannot stop.

    Args:
        model: The model.
        policy: Of the request.
        max_depth: Most layers that the request asks for.
    """
    try:
        check_can_run(model.runtime, with_depth_cap(policy, max_depth))
    except InputError as error:
        raise invalid(f"max_depth {max_depth}: {error}") from error


def steps_back(policies: Policies) -> list[str]:
    """Return the policies that the default steps back along when guarantees break, the full model last."""
    return [DEFAULT, *(name for name in policies if name.startswith(CAUTIOUS)), FULL]
