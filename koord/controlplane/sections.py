"""Component info, and the config sections that all control plane daemons have."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from koord.component.config.componentconfig import Int32, Seconds
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    invalid,
    invalid_duration,
    required,
)


@dataclass(frozen=True, slots=True)
class ComponentInfo:
    """One daemon's names."""

    name: str  # in messages, events and requests
    prefix: str  # of its metrics
    version: str


_PROTOBUF, _JSON = "application/vnd.kubernetes.protobuf", "application/json"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection:
    """One of several replicas is the leader, which holds a Lease and does the work."""

    leader_elect: bool = True  # off: this process works whatever others do
    lease_duration: Seconds = 15.0  # seconds after which another replica may take over
    renew_deadline: Seconds = 10.0  # seconds for which the leader tries to renew
    retry_period: Seconds = 2.0  # seconds between two tries
    resource_lock: str = "leases"  # kind of the lock
    resource_name: str = ""  # name of the Lease
    resource_namespace: str = "koordinator-system"  # its namespace

    def complete(self) -> Self:
        """Zero and empty values have the defaults, which are those of the daemon's own class."""
        own = type(self)()
        return replace(
            self,
            lease_duration=self.lease_duration or own.lease_duration,
            renew_deadline=self.renew_deadline or own.renew_deadline,
            retry_period=self.retry_period or own.retry_period,
            resource_lock=self.resource_lock or own.resource_lock,
            resource_name=self.resource_name or own.resource_name,
            resource_namespace=self.resource_namespace or own.resource_namespace,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConnection:
    """How the API server is reached."""

    kubeconfig: str = ""  # path of a kubeconfig; empty: the pod's service account
    accept_content_types: str = ""  # has no effect: always JSON
    content_type: str = ""  # has no effect: always JSON
    qps: float = 50.0  # requests per second; 0: 50
    burst: Int32 = 100  # requests at once; 0: 100

    def complete(self) -> Self:
        """Zero and empty values have the defaults."""
        own = type(self)()
        accept = self.accept_content_types if self.content_type else f"{_PROTOBUF},{_JSON}"
        return replace(
            self,
            accept_content_types=accept,
            content_type=self.content_type or _PROTOBUF,
            qps=self.qps or own.qps,
            burst=self.burst or own.burst,
        )


def check_sections(election: LeaderElection, client: ClientConnection) -> Iterator[FieldError]:
    """Yield the faults of completed sections."""
    if client.burst < 0:
        path: FieldPath = ("clientConnection", "burst")
        yield invalid(path, client.burst, "must be non-negative")
    if election.leader_elect:
        yield from _check_election(election)


def _check_election(election: LeaderElection) -> Iterator[FieldError]:
    durations = {
        "leaseDuration": election.lease_duration,
        "renewDeadline": election.renew_deadline,
        "retryPeriod": election.retry_period,
    }
    for key, seconds in durations.items():
        if seconds <= 0:
            yield invalid_duration(("leaderElection", key), seconds, "must be greater than zero")
    for longer, shorter in (("leaseDuration", "renewDeadline"), ("renewDeadline", "retryPeriod")):
        if durations[longer] <= durations[shorter]:
            wanted = f"must be greater than {shorter}"
            yield invalid_duration(("leaderElection", longer), durations[longer], wanted)
    for key, text in (
        ("resourceLock", election.resource_lock),
        ("resourceName", election.resource_name),
        ("resourceNamespace", election.resource_namespace),
    ):
        if not text:
            yield required(("leaderElection", key))
