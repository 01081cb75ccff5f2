"""Settings of the runtime hooks."""

from dataclasses import dataclass
from enum import StrEnum


class FailurePolicy(StrEnum):
    """The values of --runtime-hooks-plugin-failure-policy."""

    IGNORE = "Ignore"  # a plugin that fails adjusts nothing
    FAIL = "Fail"  # the runtime gets the error, and the container is not made


class Stage(StrEnum):
    """The moments that can be left out, with Koordinator's names."""

    RUN_SANDBOX = "PreRunPodSandbox"
    CREATE_CONTAINER = "PreCreateContainer"
    START_CONTAINER = "PreStartContainer"
    UPDATE_CONTAINER = "PreUpdateContainerResources"
    REMOVE_SANDBOX = "PreRemoveRunPodSandbox"


@dataclass(frozen=True, kw_only=True, slots=True)
class HookOptions:
    """The flags. Durations are in seconds."""

    node: str
    name: str
    index: str
    runtime: str  # of container ids
    failure_policy: FailurePolicy
    stages: frozenset[Stage]
    connect_timeout: float
    backoff: float  # first pause
    backoff_factor: float
    backoff_cap: float
