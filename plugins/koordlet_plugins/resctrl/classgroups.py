"""The control groups of QoS classes: LSR (also for LSE), LS and BE, as the NodeSLO divides them."""

from collections.abc import Iterator, Mapping

from koord.api.pods.pod import Pod
from koord.api.qos import QoSClass
from koord.api.slo.resourceqos import ResctrlQoS, ResourceQoS
from koordlet.plugin import InvalidObject, StateType, Target
from koordlet.plugin.claims import Part
from koordlet.plugin.pods import pods_of
from koordlet_plugins.resctrl.annotation import ANNOTATION
from koordlet_plugins.resctrl.groups import (
    CLASSES,
    Group,
    Member,
    ResctrlPlugin,
    cgroups_of,
    scopes,
)
from koordlet_plugins.resctrl.parts import (
    Lines,
    Machine,
    bandwidth,
    bandwidth_text,
    l3_mask,
    l3_text,
)

GROUP_OF = {
    QoSClass.LSE: "LSR",
    QoSClass.LSR: "LSR",
    QoSClass.LS: "LS",
    QoSClass.BE: "BE",
}
_KEYS = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}  # of the NodeSLO


def class_lines(settings: ResctrlQoS, machine: Machine, where: str) -> Lines:
    """Return the lines for a class on this machine.

    Raises:
        InvalidObject: the machine cannot divide its caches so.
    """
    l3 = mb = ""
    if machine.divides_cache:
        start, end = settings.cat_range_start_percent, settings.cat_range_end_percent
        try:
            mask = l3_mask(machine.mask, machine.fewest_ways, start, end)
        except ValueError as err:
            raise InvalidObject(
                where, wanted="a range that this machine can have", found=str(err)
            ) from err
        l3 = l3_text(dict.fromkeys(machine.caches, mask))
    if machine.bandwidths and settings.mba_percent > 0:
        number = bandwidth(settings.mba_percent, machine.vendor)
        mb = bandwidth_text(dict.fromkeys(machine.bandwidths, number))
    return Lines(l3, mb)


class RdtResctrl(ResctrlPlugin[bool]):
    """Keeps the groups of the classes that are enabled, with the processes of their pods."""

    gates = ("RdtResctrl",)
    follows = (StateType.NODE_SLO_SPEC,)
    may_claim = scopes(Part.VALUE)
    part = Part.VALUE

    def begin(self) -> None:
        super().begin()
        self._last: ResourceQoS | None = None
        self._good: dict[str, Lines] = {}  # what could be used last, by group

    def wants(self, pod: Pod) -> bool:
        """Whether the pod belongs to the group of its class; one with its own does not."""
        return ANNOTATION not in pod.annotations

    def groups(self, machine: Machine) -> Mapping[str, Group]:
        slo = self.states.node_slo()
        self._last = slo.resource_qos if slo is not None else self._last
        if self._last is None:
            return {}
        of_class = {"LSR": self._last.lsr, "LS": self._last.ls, "BE": self._last.be}
        found = {}
        for name in CLASSES:
            settings = of_class[name].resctrl
            lines = self._lines(name, settings, machine) if settings.enable else None
            if lines is not None:
                reason = (
                    f"{_KEYS[name]}.resctrlQOS: {settings.cat_range_start_percent} to "
                    f"{settings.cat_range_end_percent} % of the L3 caches, "
                    f"{settings.mba_percent} % of the memory bandwidth"
                )
                found[name] = Group(Target.resctrl(name), lines.l3, lines.mb, reason)
        return found

    def members(self, groups: Mapping[str, Group]) -> Iterator[Member]:
        pods = list(pods_of(self.states))
        self.settings.keep(meta.uid for meta in pods)
        for meta in pods:
            group = GROUP_OF.get(meta.qos, "")
            if group in groups and self.settings.of(meta.pod):
                for cgroup in cgroups_of(meta):
                    yield Member(meta, cgroup, group)

    def _lines(self, name: str, settings: ResctrlQoS, machine: Machine) -> Lines | None:
        """The lines of a class; the last good ones while its settings cannot be used."""
        try:
            found = class_lines(settings, machine, f"NodeSLO: {_KEYS[name]}.resctrlQOS")
        except InvalidObject as err:
            self.rejections.reject(name, err)
            return self._good.get(name)
        self.rejections.accept(name)
        self._good[name] = found
        return found
