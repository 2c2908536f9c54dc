"""The policies of a server by name: policy.json, those in policies/, and `full`, which never exits early."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exitpoll.decide.policy import Policy
from exitpoll.engine.engine import Engine
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.models.folder import POLICY

DEFAULT, FULL = "default", "full"
FOLDER = "policies"  # in the model folder
MOST = 32  # policies; each has series of metrics
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


Policies = Mapping[str, NamedPolicy]


def load_policies(model: LoadedModel, folder: Path | None, default: Policy | None = None) -> Policies:
    """Load the policies of a model, and check that they fit it.

    Args:
        model: The model.
        folder: The folder with policy.json and policies/; None for a model that has none.
        default: The default policy, in place of policy.json.

    Returns:
        The policies by name.
    """
    never = Policy(problem_type=model.runtime.problem_type)
    found = {DEFAULT: default or never, FULL: never}
    if folder is not None:
        if default is None and (folder / POLICY).exists():
            found[DEFAULT] = Policy.load(folder / POLICY)
        for path in sorted((folder / FOLDER).glob("*.json")):
            if path.stem in found or not NAME.fullmatch(path.stem):
                raise InputError(f"'{path}': a policy may not be called '{path.stem}'; rename the file")
            found[path.stem] = Policy.load(path)
    if len(found) > MOST:
        raise InputError(f"'{folder}' has {len(found)} policies; at most {MOST} can be served")
    for policy in found.values():
        Engine(model, policy)  # refuses a policy of another model, or one whose exits the model does not have
    return {name: NamedPolicy(name, policy) for name, policy in found.items()}
