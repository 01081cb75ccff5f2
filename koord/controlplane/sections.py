"""Component info, and what configuration files of all control plane daemons have in common."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from koord.component.config.componentconfig import (
    Hint,
    Int32,
    ReadConfig,
    Seconds,
    read_component_config,
    settled,
    to_json,
)
from koord.component.config.document import DocumentWithLines, ParseConfig, decode_with_lines
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


class ControlPlaneDocument(Protocol):
    """A configuration file as it is written, a dataclass."""

    @property
    def leader_election(self) -> LeaderElection: ...

    @property
    def client_connection(self) -> ClientConnection: ...

    def complete(self) -> Self:
        """Return it with all defaults but those of profiles."""


D = TypeVar("D", bound=ControlPlaneDocument)
K = TypeVar("K")
C = TypeVar("C")

Fields = Mapping[str, object]
"""Fields of a section, by attribute, that flags set: they win over the file's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigFormat(Generic[D, K, C]):
    """The configuration file of one daemon: read and written."""

    document: type[D]
    group_version: str
    kind: str
    convert: Callable[[D, K], tuple[C | None, list[FieldError]]]
    """Returns what a completed document means with the known plugins, and its faults."""
    hint: Hint = lambda found: ""

    def parser(
        self, known: K, leader_election: Fields | None = None, kubeconfig: str = ""
    ) -> ParseConfig[ReadConfig[C]]:
        """Return the function that reads a file, for read_config and ConfigFollower; see parse."""

        def parse(data: bytes, path: Path) -> ReadConfig[C]:
            return self.parse(data, path, known, leader_election, kubeconfig)

        return parse

    def parse(
        self,
        data: bytes,
        path: Path,
        known: K,
        leader_election: Fields | None = None,
        kubeconfig: str = "",
    ) -> ReadConfig[C]:
        """Return the configuration of a file's bytes, YAML or JSON. path is for messages.

        kubeconfig is that of a file that names none.

        Raises:
            InvalidConfig: it has faults; all are named.
            InvalidObject: it cannot be decoded at all.
        """
        placed = decode_with_lines(data, str(path))
        external, faults = read_component_config(
            placed,
            self.document,
            group_version=self.group_version,
            kind=self.kind,
            hint=self.hint,
        )
        if external is not None and kubeconfig and not external.client_connection.kubeconfig:
            external = _with_client(external, {"kubeconfig": kubeconfig})
        return settled(external, faults, placed, path, self._converter(known, leader_election))

    def default(
        self,
        known: K,
        leader_election: Fields | None = None,
        client_connection: Fields | None = None,
    ) -> ReadConfig[C]:
        """Return the configuration of a start without a file. Raises InvalidConfig as parse."""
        external = _with_client(self.document(), client_connection or {})
        convert = self._converter(known, leader_election)
        return settled(external, [], DocumentWithLines({}), Path("flags"), convert)

    def to_json(self, document: D) -> dict[str, object]:
        """Return a document as JSON values that read back."""
        fields = to_json(document)
        assert isinstance(fields, dict)  # noqa: S101
        return {"apiVersion": self.group_version, "kind": self.kind, **fields}

    def _converter(
        self, known: K, leader_election: Fields | None
    ) -> Callable[[D], tuple[C | None, list[FieldError]]]:
        """Return what completes a document; leader_election wins over what it says."""

        def convert_completed(external: D) -> tuple[C | None, list[FieldError]]:
            completed = external.complete()
            fields = dict(leader_election or {})
            election = replace(completed.leader_election, **fields)  # type: ignore[arg-type]
            return self.convert(replace(completed, leader_election=election), known)  # type: ignore[type-var]

        return convert_completed


def _with_client(document: D, fields: Fields) -> D:
    client = replace(document.client_connection, **dict(fields))  # type: ignore[arg-type]
    return replace(document, client_connection=client)  # type: ignore[type-var]
