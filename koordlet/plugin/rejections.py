"""Settings from outside that cannot be used: counted, and reported once, also on their pod."""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from koord.util.errors import InvalidObject

if TYPE_CHECKING:
    from koord.api.pods.pod import Pod
    from koordlet.plugin.base import ExtensionPlugin
    from koordlet.plugin.metrics import BoundedCounter, PluginMetrics

REASON = "SettingRejected"  # of the Kubernetes event on a pod
_COUNTERS: "WeakKeyDictionary[PluginMetrics, BoundedCounter]" = WeakKeyDictionary()  # one each


class Rejections:
    """Settings that a plugin could not use, by pod or other object, until they are mended or gone.

    Counts in the plugin's metric rejected_total. An object is reported again when something else is
    wrong with it.
    """

    def __init__(self, plugin: "ExtensionPlugin") -> None:
        """plugin: the one that cannot use them; call this from setup on."""
        self._plugin = plugin
        self._reported: dict[str, str] = {}  # by the UID of a pod, or the name of another object
        counter = _COUNTERS.get(plugin.metrics)
        if counter is None:
            counter = _COUNTERS[plugin.metrics] = plugin.metrics.counter(
                "rejected_total",
                "Settings of pods and of the node that could not be used; the last good ones stay.",
                {"object": ("pod", "node")},
            )
        self._count = counter

    def reject(self, key: str, err: InvalidObject, pod: "Pod | None" = None) -> None:
        """Report it unless that was done already; also on the pod when it is one's."""
        message = str(err)
        if self._reported.get(key) == message:
            return
        self._reported[key] = message
        self._count.inc(object="node" if pod is None else "pod")
        self._plugin.log.warning("setting.rejected", error=message)
        if pod is not None:
            text = f"{self._plugin.name} cannot use it, the last good value stays: {message}"
            self._plugin.announce(pod, reason=REASON, message=text)

    def accept(self, key: str) -> None:
        """Report that an object can be used again; nothing when it was not rejected."""
        if message := self._reported.pop(key, None):
            self._plugin.log.info("setting.accepted", was=message)

    def forget(self, key: str) -> None:
        """Forget an object that is gone."""
        self._reported.pop(key, None)
