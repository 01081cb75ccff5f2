"""DeschedulerConfiguration as files have it, with the defaults of its fields.

Source: Koordinator, pkg/descheduler/apis/config/v1alpha2; dryRun of a profile and evictionLedger
are not in it.
"""

import ipaddress
from dataclasses import dataclass, replace
from typing import Self

from koord.api.labelselector import LabelSelector
from koord.component.config.componentconfig import Seconds, UInt
from koord.controlplane import sections
from koord.controlplane.sections import ClientConnection
from koord.util.goformat import split_address

GROUP_VERSION = "descheduler/v1alpha2"
KIND = "DeschedulerConfiguration"

DEFAULT_NAME = "koord-descheduler"
DEFAULT_PORT = 10251


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection(sections.LeaderElection):
    """One of several replicas is the leader, which holds a Lease and does the work."""

    resource_name: str = DEFAULT_NAME  # name of the Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionLedger:
    """Measures the relief of evictions for load; pauses workloads whose evictions bring none."""

    enabled: bool = True  # off: nothing is measured, and nothing rejected
    spacing: Seconds = 60.0  # least seconds from any eviction of a workload to one for load
    settle_time: Seconds = 300.0  # from when a pod has left until reports are without it


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginName:
    """One plugin of a set."""

    name: str = ""  # of the plugin; "*" under disabled: all


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSet:
    """The difference to the default plugins of an extension point. Enabled wins over disabled."""

    enabled: tuple[PluginName, ...] = ()  # run in this order, after the defaults
    disabled: tuple[PluginName, ...] = ()  # defaults that do not run


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """The plugins of a profile."""

    deschedule: PluginSet | None = None  # evict pods that violate a rule; by default none
    balance: PluginSet | None = None  # even out the load; by default none
    evict: PluginSet | None = None  # exactly one; by default MigrationController
    filter: PluginSet | None = None  # all must let a pod go; by default MigrationController


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """The arguments of one plugin."""

    name: str = ""  # of the plugin
    args: object = None  # see the plugin; not set: its defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class DeschedulerProfile:
    """Plugins that run together."""

    name: str = ""  # unique; koord-descheduler when it is the only profile
    node_selector: LabelSelector | None = None  # nodes of this profile; not set: all
    plugins: Plugins | None = None  # differences to the default plugins
    plugin_config: tuple[PluginConfig, ...] = ()  # arguments, one entry for a plugin
    dry_run: bool = False  # decide, but evict nothing in this profile


@dataclass(frozen=True, kw_only=True, slots=True)
class DeschedulerConfiguration:
    """The configuration of one koord-descheduler."""

    leader_election: LeaderElection = LeaderElection()  # see below
    client_connection: ClientConnection = ClientConnection()  # see below
    enable_profiling: bool = True  # serve profiles of the process
    enable_contention_profiling: bool | None = None  # not set: as enableProfiling
    healthz_bind_address: str | None = None  # HOST:PORT of plain HTTP; not set: 127.0.0.1:10251
    metrics_bind_address: str | None = None  # HOST:PORT of plain HTTP; not set: 127.0.0.1:10251
    descheduling_interval: Seconds = 0.0  # seconds from start to start; 0: a single cycle
    dry_run: bool = False  # decide, but evict nothing
    profiles: tuple[DeschedulerProfile, ...] = ()  # run in this order; none: one of defaults
    node_selector: LabelSelector | None = None  # nodes of all profiles; not set: all
    max_no_of_pods_to_evict_per_node: UInt | None = None  # in a cycle; not set: no limit, 0: none
    max_no_of_pods_to_evict_per_namespace: UInt | None = None  # in a cycle; not set: no limit
    max_no_of_pods_to_evict_total: UInt | None = None  # in a cycle; not set: no limit
    eviction_ledger: EvictionLedger = EvictionLedger()  # see below

    def complete(self) -> Self:
        """Return it with all defaults but those of profiles' plugins."""
        contention = self.enable_contention_profiling
        return replace(
            self,
            leader_election=self.leader_election.complete(),
            client_connection=self.client_connection.complete(),
            enable_contention_profiling=self.enable_profiling if contention is None else contention,
            healthz_bind_address=_bind_address(self.healthz_bind_address),
            metrics_bind_address=_bind_address(self.metrics_bind_address),
            profiles=_named(self.profiles or (DeschedulerProfile(),)),
        )


def _named(profiles: tuple[DeschedulerProfile, ...]) -> tuple[DeschedulerProfile, ...]:
    """The profiles; a single one has a name."""
    if len(profiles) > 1 or profiles[0].name:
        return profiles
    return (replace(profiles[0], name=DEFAULT_NAME),)


def _bind_address(given: str | None) -> str:
    """The address to listen on: host and port are filled in, what is neither stays.

    Source: Koordinator, SetDefaults_DeschedulerConfiguration; there with 0.0.0.0 when not set.
    """
    if given is None:
        return f"127.0.0.1:{DEFAULT_PORT}"
    try:
        host, port = split_address(given)
    except ValueError:
        return _with_port(given)
    return given if host else f"0.0.0.0:{port}"


def _with_port(given: str) -> str:
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return given
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{DEFAULT_PORT}"
