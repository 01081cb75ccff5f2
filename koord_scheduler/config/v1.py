"""KubeSchedulerConfiguration v1, as files have it, and hints for older versions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from koord.api.gojson import wire
from koord.component.config.componentconfig import Int32, Seconds
from koord.controlplane import sections
from koord.controlplane.sections import ClientConnection

GROUP = "kubescheduler.config.k8s.io"
GROUP_VERSION = f"{GROUP}/v1"
KIND = "KubeSchedulerConfiguration"
DEFAULT_NAME = "koord-scheduler"
ALL = "*"
DEFAULT_SCHEDULER_NAME = "default-scheduler"
DEFAULT_HTTP_TIMEOUT = 5.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedPlugin:
    """One plugin of a set."""

    name: str = ""  # of the plugin; "*" under disabled: all
    weight: Int32 = 0  # of its scores; 0: 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSet:
    """The difference to the default plugins of an extension point."""

    enabled: tuple[NamedPlugin, ...] = ()  # run after the defaults
    disabled: tuple[NamedPlugin, ...] = ()  # defaults that do not run


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """The plugins of a profile, by extension point."""

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()  # at every extension point that a plugin has


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginConfig:
    """The arguments of one plugin."""

    name: str = ""  # of the plugin
    args: object = None  # see the plugin; not set: its defaults


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeSchedulerProfile:
    """Plugins that schedule the pods of one scheduler name."""

    scheduler_name: str = ""  # default-scheduler when it is the only profile
    percentage_of_nodes_to_score: Int32 | None = None  # not set: as for all profiles
    plugins: Plugins | None = None  # differences to the default plugins
    plugin_config: tuple[PluginConfig, ...] = ()  # arguments, one entry for a plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtenderTLSConfig:
    """How an extender is reached by HTTPS. Data in base64; it wins over the file."""

    insecure: bool = False  # its certificate is not verified
    server_name: str = ""  # the name in its certificate; not set: the host of urlPrefix
    cert_file: str = ""  # certificate in PEM by which the scheduler is known to it
    key_file: str = ""  # its key
    ca_file: str = ""  # CAs in PEM that its certificate is verified with; not set: the system's
    cert_data: str = ""  # in place of certFile
    key_data: str = ""  # in place of keyFile
    ca_data: str = ""  # in place of caFile


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtenderManagedResource:
    """An extended resource that an extender looks after."""

    name: str = ""  # such as example.com/gpu
    ignored_by_scheduler: bool = False  # NodeResourcesFit does not look at it


@dataclass(frozen=True, kw_only=True, slots=True)
class Extender:
    """A service that is asked about nodes by HTTP."""

    url_prefix: str = ""  # each verb is asked at urlPrefix/verb
    filter_verb: str = ""  # not set: it does not filter
    preempt_verb: str = ""  # not set: it is not asked about preemption
    prioritize_verb: str = ""  # not set: it does not score
    weight: int = 0  # of its scores; more than 0 with prioritizeVerb
    bind_verb: str = ""  # not set: it does not bind; of one extender at most
    enable_https: bool = wire("enableHTTPS", False)  # without caFile, do not verify certificates
    tls_config: ExtenderTLSConfig | None = None  # see below
    http_timeout: Seconds = 0.0  # seconds for an answer; 0: 5s
    node_cache_capable: bool = False  # it knows the nodes: only names are sent
    managed_resources: tuple[ExtenderManagedResource, ...] = ()  # only pods with one; none: all
    ignorable: bool = False  # pods are scheduled also while it fails

    def complete(self) -> Self:
        """Zero and empty values have the defaults."""
        return replace(self, http_timeout=self.http_timeout or DEFAULT_HTTP_TIMEOUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaderElection(sections.LeaderElection):
    """One of several replicas is the leader, which holds a Lease and schedules pods."""

    resource_name: str = DEFAULT_NAME  # name of the Lease


@dataclass(frozen=True, kw_only=True, slots=True)
class KubeSchedulerConfiguration:
    """The configuration of one koord-scheduler."""

    parallelism: Int32 = 16  # has no effect: all nodes are looked at at once
    leader_election: LeaderElection = LeaderElection()  # see below
    client_connection: ClientConnection = ClientConnection()  # see below
    enable_profiling: bool = True  # has no effect
    enable_contention_profiling: bool = True  # has no effect
    percentage_of_nodes_to_score: Int32 | None = None  # not set: all; 0: fewer, the more there are
    pod_initial_backoff_seconds: int = 1  # a rejected pod's first wait; it doubles each time
    pod_max_backoff_seconds: int = 10  # the longest; 0: it does not wait
    profiles: tuple[KubeSchedulerProfile, ...] = ()  # none: one of defaults
    extenders: tuple[Extender, ...] = ()  # asked by all profiles
    delay_cache_until_active: bool = False  # has no effect: a standby follows the cluster, too

    def complete(self) -> Self:
        """Return it with all defaults but those of profiles."""
        return replace(
            self,
            leader_election=self.leader_election.complete(),
            client_connection=self.client_connection.complete(),
            extenders=tuple(one.complete() for one in self.extenders),
        )


_WEIGHTS = "TaintToleration now weighs 3, NodeAffinity and InterPodAffinity 2"
_ADDRESSES = "healthzBindAddress and metricsBindAddress are the flags --address and --port"
_SPREAD = "SelectorSpread is PodTopologySpread's default constraints"
_FIT = (
    "NodeResourcesLeastAllocated, NodeResourcesMostAllocated and RequestedToCapacityRatio are "
    "scoringStrategy of NodeResourcesFitArgs"
)
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "v1beta3": (_SPREAD,),
    "v1beta2": (_ADDRESSES, _WEIGHTS, _SPREAD),
    "v1beta1": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
    "v1alpha2": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
    "v1alpha1": (_ADDRESSES, _FIT, _WEIGHTS, _SPREAD),
}


def version_hint(found: object) -> str:
    """Return what to do about an apiVersion that is not served; "": it never was."""
    group, _, version = str(found).partition("/")
    if group != GROUP or version not in _CHANGES:
        return ""
    return (
        f"{version} is gone since Kubernetes 1.29 or earlier: write {GROUP_VERSION} here and in "
        f"the args of plugins, and see to this: {'; '.join(_CHANGES[version])}"
    )
