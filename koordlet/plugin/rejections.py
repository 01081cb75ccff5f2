"""Settings from outside that cannot be used: told once, counted, and told where they were made."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from koord.util.errors import InvalidObject

if TYPE_CHECKING:
    from koord.api.pod import Pod
    from koordlet.plugin.base import ExtensionPlugin
    from koordlet.plugin.metrics import BoundedCounter, PluginMetrics

REASON = "SettingRejected"  # of the Kubernetes event on a pod
_COUNTERS: "WeakKeyDictionary[PluginMetrics, BoundedCounter]" = WeakKeyDictionary()  # one each


class Rejections:
    """What a plugin could not use, by pod or other object, until it is right again or gone.

    Counts in the plugin's metric rejected_total. An object is told of again when something else is
    wrong with it.
    """

    def __init__(self, plugin: "ExtensionPlugin") -> None:
        """plugin: who cannot use it; call this from setup on."""
        self._plugin = plugin
        self._told: dict[str, str] = {}  # by the UID of a pod, or the name of another object
        counter = _COUNTERS.get(plugin.metrics)
        if counter is None:
            counter = _COUNTERS[plugin.metrics] = plugin.metrics.counter(
                "rejected_total",
                "Settings of pods and of the node that could not be used; the last good ones stay.",
                {"object": ("pod", "node")},
            )
        self._count = counter

    def reject(self, key: str, err: InvalidObject, pod: "Pod | None" = None) -> None:
        """Tell of it unless that was done already; also on the pod when it is one's."""
        message = str(err)
        if self._told.get(key) == message:
            return
        self._told[key] = message
        self._count.inc(object="node" if pod is None else "pod")
        self._plugin.log.warning("setting.rejected", error=message)
        if pod is not None:
            text = f"{self._plugin.name} cannot use it, the last good value stays: {message}"
            self._plugin.announce(pod, reason=REASON, message=text)

    def accept(self, key: str) -> None:
        """Tell that something can be used again; nothing when that was never in doubt."""
        if message := self._told.pop(key, None):
            self._plugin.log.info("setting.accepted", was=message)

    def forget(self, key: str) -> None:
        """The object is gone."""
        self._told.pop(key, None)
