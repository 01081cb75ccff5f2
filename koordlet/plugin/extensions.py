"""A plugin's own settings in the NodeSLO: one key of its extensions, typed by its parser."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from koord.api.decoding.fields import Fields
from koord.util.errors import InvalidObject, KoordError
from koordlet.plugin.rejections import Rejections

if TYPE_CHECKING:
    from koordlet.plugin.base import ExtensionPlugin
    from koordlet.plugin.states import States

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
        """The object as it came; None: there is none. Raises InvalidObject."""
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
        except Exception as err:  # the plugin's own code on what came from outside
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
