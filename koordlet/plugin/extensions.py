"""A plugin's own settings in the NodeSLO, and settings from outside that cannot be used."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from koord.api.fields import Fields
from koord.util.errors import InvalidObject, KoordError

if TYPE_CHECKING:
    from koord.api.pod import Pod
    from koordlet.plugin.base import ExtensionPlugin
    from koordlet.plugin.interfaces import States
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


T = TypeVar("T")


class Extension(Generic[T]):
    """The value of spec.extensions.Object.<key> in this node's NodeSLO.

    parse turns the object into the plugin's own type, and raises InvalidObject (as the methods of
    Fields do), OptionError or ValueError for what it cannot use. Then the last good value stays,
    and it is reported once in the log, in rejected_total, and in the plugin's line of /healthz.
    """

    def __init__(
        self,
        plugin: "ExtensionPlugin",
        states: "States",
        key: str,
        parse: Callable[[Fields], T],
        default: T,
    ) -> None:
        """default: the value while the NodeSLO has no such key. Make it in setup."""
        self._plugin = plugin
        self._states = states
        self._key = key
        self._parse = parse
        self._default = self._value = default
        self._raw: object = None
        self._problem = ""
        self._rejections = Rejections(plugin)

    def value(self) -> T:
        """Return the present value. Cheap: the object is parsed when it has changed."""
        try:
            raw = self._found()
        except InvalidObject as err:
            self._reject(err)
            return self._value
        if raw is not self._raw or raw is None:
            self._raw = raw
            self._take(raw)
        elif self._problem:
            self._plugin.degrade(self._problem, part=self._where)
        return self._value

    @property
    def _where(self) -> str:
        return f"nodeSLO.spec.extensions.Object.{self._key}"

    def _found(self) -> object:
        """Return the object as received; None: there is none. Raises InvalidObject."""
        slo = self._states.node_slo()
        if slo is None:
            return None
        extensions = Fields(slo.spec, "nodeSLO.spec").nested("extensions")
        return extensions.nested("Object").raw.get(self._key)

    def _take(self, raw: object) -> None:
        try:
            value = self._default if raw is None else self._parse(Fields(raw, self._where))
        except InvalidObject as err:
            self._reject(err)
        except Exception as err:  # the plugin's own code, run on input from outside
            why = str(err) if isinstance(err, KoordError | ValueError) else repr(err)
            self._reject(InvalidObject(self._where, wanted="usable settings", found=why))
        else:
            self._value = value
            self._problem = ""
            self._rejections.accept(self._where)
            self._plugin.degrade("", part=self._where)

    def _reject(self, err: InvalidObject) -> None:
        self._problem = str(err)
        self._rejections.reject(self._where, err)
        self._plugin.degrade(f"the last good value stays: {err}", part=self._where)
