"""Flags of kube-scheduler and of Koordinator's scheduler beside those of every daemon.

Source: Kubernetes, cmd/kube-scheduler/app/options; Koordinator, cmd/koord-scheduler.
"""

from pathlib import Path
from typing import Any

from koord.component.flagchecks import address, at_least
from koord.component.flagkinds import BOOL, DURATION, INT, STRING, STRING_LIST
from koord.component.flags import Flag, FlagSet
from koord.component.http.sockets import Address
from koord.component.inertflags import InertFlag, define_inert_flags
from koord.util.address import is_loopback
from koord.util.errors import OptionError
from koord_scheduler.extenderserver.access import AccessFiles
from koord_scheduler.framework.debugging import Debugging
from koord_scheduler.queue.schedulingqueue import LONGEST_IN_POOL
from koord_scheduler.scheduling.diagnosisdump import QUEUE
from koord_scheduler.scheduling.monitor import Patience

_NO_LOOKUP = "tokens are checked by the API server that the scheduler works for"
_NO_CERTIFICATES = "clients are known by their tokens only"
_ONE_WRITER = "one writer of diagnoses is enough, on the event loop"

_INERT = (
    InertFlag("authentication-kubeconfig", STRING, "", _NO_LOOKUP),
    InertFlag("authentication-skip-lookup", BOOL, False, _NO_LOOKUP),
    InertFlag("authentication-token-webhook-cache-ttl", DURATION, 10.0, _NO_LOOKUP),
    InertFlag("authentication-tolerate-lookup-failure", BOOL, True, _NO_LOOKUP),
    InertFlag(
        "authorization-always-allow-paths",
        STRING,
        "/healthz,/readyz,/livez",
        "health and metrics are for all, the rest is not",
    ),
    InertFlag("authorization-kubeconfig", STRING, "", _NO_LOOKUP),
    InertFlag("authorization-webhook-cache-authorized-ttl", DURATION, 10.0, _NO_LOOKUP),
    InertFlag("authorization-webhook-cache-unauthorized-ttl", DURATION, 10.0, _NO_LOOKUP),
    InertFlag("client-ca-file", STRING, "", _NO_CERTIFICATES),
    InertFlag("requestheader-allowed-names", STRING_LIST, (), _NO_CERTIFICATES),
    InertFlag("requestheader-client-ca-file", STRING, "", _NO_CERTIFICATES),
    InertFlag("requestheader-extra-headers-prefix", STRING_LIST, (), _NO_CERTIFICATES),
    InertFlag("requestheader-group-headers", STRING_LIST, (), _NO_CERTIFICATES),
    InertFlag("requestheader-uid-headers", STRING_LIST, (), _NO_CERTIFICATES),
    InertFlag("requestheader-username-headers", STRING_LIST, (), _NO_CERTIFICATES),
    InertFlag("contention-profiling", BOOL, True, "no profiles are served"),
    InertFlag("profiling", BOOL, True, "no profiles are served"),
    InertFlag("disable-http2-serving", BOOL, False, "HTTP/2 is not served"),
    InertFlag("emulated-version", STRING_LIST, (), "the version of Kubernetes to behave like"),
    InertFlag("emulation-forward-compatible", BOOL, False, "see --emulated-version"),
    InertFlag("min-compatibility-version", STRING_LIST, (), "see --emulated-version"),
    InertFlag("kube-api-content-type", STRING, "", "always JSON"),
    InertFlag("debug-diagnosis-worker-count", INT, 10, _ONE_WRITER, at_least(0)),
    InertFlag(
        "scheduling-drop-unhandled-timeout",
        DURATION,
        5.0,
        "a pod that leaves the queue is tried or let go at once, and not watched before",
    ),
)


def _extender_address(text: str) -> str:
    return address(text) if text else ""


def _positive(seconds: float) -> str:
    return "" if seconds > 0 else "use more than 0s"


class SchedulerFlags:
    """The flags as attributes."""

    def __init__(self, flags: FlagSet) -> None:
        """Define all flags."""
        self.master = flags.string(
            "master", "", "URL of the API server, in place of the kubeconfig's"
        )
        unless = "; the file's with --config"
        self._client: dict[str, Flag[Any]] = {
            "kubeconfig": flags.string(
                "kubeconfig", "", "path of a kubeconfig; the file's, if it names one"
            ),
            "qps": flags.float("kube-api-qps", 50.0, f"requests per second{unless}"),
            "burst": flags.int(
                "kube-api-burst", 100, f"requests at once{unless}", check=at_least(0)
            ),
        }
        self._scores = [
            flags.int(name, 0, "log so many of the best nodes of each cycle", check=at_least(0))
            for name in ("debug-scores", "s")
        ]
        self._filters = [
            flags.bool(name, False, "log which nodes each plugin rejects")
            for name in ("debug-filters", "f")
        ]
        self._diagnosis = [
            flags.bool(name, False, "log as JSON why a pod found no node")
            for name in ("debug-diagnosis", "d")
        ]
        self._diagnosis_blocking = flags.bool(
            "debug-diagnosis-blocking", False, "log diagnoses before the next cycle, and drop none"
        )
        self.diagnoses = flags.int(
            "debug-diagnosis-queue-size",
            QUEUE,
            "diagnoses that wait to be logged; further ones are dropped",
            check=at_least(0),
        )
        usual = Patience()
        self.monitor_period = flags.duration(
            "scheduler-monitor-period",
            usual.period,
            "time between two looks at attempts that are under way",
            check=_positive,
        )
        self.scheduling_timeout = flags.duration(
            "scheduling-timeout",
            usual.timeout,
            "time after which an attempt, with its binding, is logged and counted as too long",
            check=_positive,
        )
        self.longest_in_pool = flags.duration(
            "pod-max-in-unschedulable-pods-duration",
            LONGEST_IN_POOL,
            "time after which a rejected pod is tried again without an event",
            check=_positive,
        )
        self.extender = flags.string(
            "extender",
            "",
            "serve the plugins to a kube-scheduler on this address (:PORT is 127.0.0.1:PORT), and "
            "schedule nothing",
            check=_extender_address,
        )
        self.extender_timeout = flags.duration(
            "extender-timeout",
            5.0,
            "the httpTimeout that kube-scheduler has for this extender",
            check=_positive,
        )
        self.extender_fail_open = flags.bool(
            "extender-fail-open",
            False,
            "where a plugin fails let all nodes pass, in place of failing the pod's attempt",
        )
        self._extender_files = {
            name: flags.string(f"extender-{flag}", "", meaning)
            for name, flag, meaning in (
                ("certificate", "tls-cert-file", "certificate in PEM of HTTPS for --extender"),
                ("key", "tls-private-key-file", "its key in PEM; both are followed"),
                (
                    "client_ca",
                    "client-ca-file",
                    "CAs in PEM of which a client of --extender needs a certificate",
                ),
                (
                    "token",
                    "token-file",
                    "file with the bearer token that a client of --extender needs",
                ),
            )
        }
        self.network_topology = flags.bool(
            "enable-network-topology-manager",
            False,
            "have plugins see the network between nodes, as ClusterNetworkTopology has it",
        )
        self.auditor = flags.bool(
            "enable-workload-auditor", False, "record what becomes of each workload"
        )
        self.controller_plugins = flags.string_list(
            "controller-plugins",
            ("*",),
            "plugins whose controllers run: names, * for all, -NAME for all but that one",
        )
        define_inert_flags(flags, _INERT)

    def check_together(self) -> None:
        """Check flags against each other; call it after parsing.

        Raises:
            OptionError: the extender's clients could be anyone, or a file is missing.
        """
        given = {name: flag for name, flag in self._extender_files.items() if flag.value}
        for one, needs in (("certificate", "key"), ("key", "certificate"), ("client_ca", "key")):
            if one in given and needs not in given:
                hint = f"give --{self._extender_files[needs].name} as well"
                raise OptionError(f"--{given[one].name}", given[one].value, hint)
        address = self.extender_address
        local = address is None or address.host == "localhost" or is_loopback(address.host)
        if not local and not self.extender_files.known:
            hint = (
                "others can connect there: give --extender-client-ca-file and a certificate, or "
                "--extender-token-file; or listen on 127.0.0.1"
            )
            raise OptionError(f"--{self.extender.name}", self.extender.value, hint)

    def debugging(self) -> Debugging:
        """Return what cycles log at the start; of a flag and its letter either counts."""
        return Debugging(
            scores=max(flag.value for flag in self._scores),
            filters=any(flag.value for flag in self._filters),
            diagnosis=any(flag.value for flag in self._diagnosis),
            diagnosis_blocking=self._diagnosis_blocking.value,
        )

    def patience(self) -> Patience:
        """How long attempts may take."""
        return Patience(timeout=self.scheduling_timeout.value, period=self.monitor_period.value)

    @property
    def extender_address(self) -> Address | None:
        """Where plugins are served to a kube-scheduler; None: this process schedules itself."""
        if not self.extender.value:
            return None
        found = Address.parse(self.extender.value)
        return Address(found.host or "127.0.0.1", found.port)

    @property
    def extender_files(self) -> AccessFiles:
        """What the extender's clients and TLS are checked by."""
        given = {name: flag.value for name, flag in self._extender_files.items() if flag.value}
        return AccessFiles(**{name: Path(value) for name, value in given.items()})

    @property
    def kubeconfig(self) -> str:
        """Path of a kubeconfig; empty: not given."""
        return str(self._client["kubeconfig"].value)

    def client_connection(self) -> dict[str, object]:
        """The fields of ClientConnection, by attribute, that flags set."""
        return {name: flag.value for name, flag in self._client.items() if flag.is_set}
