"""Builds the proxy of pod resources. Imported only while the gate PodResourcesProxy is on."""

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from koord.component.components import Part
from koord.component.gated import Lacking
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.logs import LogState, get_logger
from koordlet.daemon.report.devices import known_devices
from koordlet.daemon.settings.settings import Settings
from koordlet.metriccache.cache import MetricCache
from koordlet.podresources.messages import GivenDevices
from koordlet.rules.podresources import given_devices
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.model import PodMeta

_SOCKET = "pod-resources/kubelet.sock"  # in the kubelet's directory
_MISSING = (
    "wanted the Python package grpclib, found none; install koordlet[podresources], or switch the "
    "gate PodResourcesProxy off"
)

log = get_logger("koordlet.podresources")


def build_pod_resources(
    settings: Settings, states: StatesInformer, cache: MetricCache, clock: Clock
) -> Part:
    """Make the proxy; without the package that it needs, something that says so."""
    if importlib.util.find_spec("grpclib") is None:
        log.warning("pod_resources.missing", error=_MISSING)
        return Lacking(_MISSING)
    from koordlet.podresources.proxy import PodResourcesProxy

    return PodResourcesProxy(
        Path(settings.options.pod_resources_proxy_path.value),
        settings.paths.kubelet / _SOCKET,
        _Given(settings, states, cache),
        clock,
    )


class _Given:
    """Finds what a pod was given; an annotation that does not hold adds nothing."""

    def __init__(self, settings: Settings, states: StatesInformer, cache: MetricCache) -> None:
        self._settings = settings
        self._states = states
        self._cache = cache
        self._pods: tuple[PodMeta, ...] = ()
        self._by_name: dict[tuple[str, str], PodMeta] = {}
        self._trouble = LogState(log)

    def __call__(self, namespace: str, name: str) -> Iterable[GivenDevices]:
        pods = self._states.pods()
        if pods is not self._pods:
            self._by_name = {(meta.pod.namespace, meta.pod.name): meta for meta in pods}
            self._pods = pods
        meta = self._by_name.get((namespace, name))
        if meta is None:
            return []
        devices = known_devices(self._cache, rdma=self._settings.gates.enabled("RDMADevices"))
        try:
            return [GivenDevices(*each) for each in given_devices(meta.pod, devices)]
        except InvalidObject as err:
            self._trouble.failed(
                "pod_resources.devices_refused", pod=f"{namespace}/{name}", error=str(err)
            )
            return []
