"""The two plugins: control groups of QoS classes, and of single pods by annotation."""

from collections.abc import Iterator, Mapping

from koord.api.annotations import place
from koord.api.pod import Pod
from koord.api.qos import QoSClass
from koord.api.qosstrategy import ResctrlQoS, ResourceQoS
from koord.plugin import InvalidObject
from koordlet.plugin import PodMeta, StateType, Target
from koordlet.plugin.kernel import Part
from koordlet.plugin.pods import pods_of
from koordlet_plugins.resctrl.groups import (
    CLASSES,
    POD_PREFIX,
    ResctrlMember,
    ResctrlPlugin,
    WantedGroup,
    cgroups_of,
    scopes,
)
from koordlet_plugins.resctrl.rules import (
    ANNOTATION,
    PodParts,
    ResctrlMachine,
    SchemataLines,
    bandwidth,
    bandwidth_text,
    l3_mask,
    l3_text,
    lines_for,
    parts_of,
)

GROUP_OF = {
    QoSClass.LSE: "LSR",
    QoSClass.LSR: "LSR",
    QoSClass.LS: "LS",
    QoSClass.BE: "BE",
}
_KEYS = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}  # of the NodeSLO


def class_lines(settings: ResctrlQoS, machine: ResctrlMachine, where: str) -> SchemataLines:
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
    return SchemataLines(l3, mb)


class RdtResctrl(ResctrlPlugin[bool]):
    """Keeps the groups of the classes that are enabled, with the processes of their pods."""

    gates = ("RdtResctrl",)
    follows = (StateType.NODE_SLO_SPEC,)
    may_claim = scopes(Part.VALUE)
    part = Part.VALUE

    def begin(self) -> None:
        super().begin()
        self._last: ResourceQoS | None = None
        self._good: dict[str, SchemataLines] = {}  # what could be used last, by group

    def pod_settings(self, pod: Pod) -> bool:
        """Whether the pod belongs to the group of its class; one with its own does not."""
        return ANNOTATION not in pod.annotations

    def groups(self, machine: ResctrlMachine) -> Mapping[str, WantedGroup]:
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
                found[name] = WantedGroup(Target.resctrl(name), lines.l3, lines.mb, reason)
        return found

    def members(self, groups: Mapping[str, WantedGroup]) -> Iterator[ResctrlMember]:
        pods = list(pods_of(self.states))
        self.settings.keep(meta.uid for meta in pods)
        for meta in pods:
            group = GROUP_OF.get(meta.qos, "")
            if group in groups and self.settings.of(meta.pod):
                for cgroup in cgroups_of(meta):
                    yield ResctrlMember(meta, cgroup, group)

    def _lines(
        self, name: str, settings: ResctrlQoS, machine: ResctrlMachine
    ) -> SchemataLines | None:
        """The lines of a class; the last good ones while its settings cannot be used."""
        try:
            found = class_lines(settings, machine, f"NodeSLO: {_KEYS[name]}.resctrlQOS")
        except InvalidObject as err:
            self.rejections.reject(name, err)
            return self._good.get(name)
        self.rejections.accept(name)
        self._good[name] = found
        return found


class Resctrl(ResctrlPlugin[PodParts]):
    """Keeps a group for each pod with the annotation, and its processes in it."""

    gates = ("Resctrl",)
    may_claim = scopes(Part.PIN)
    part = Part.PIN

    def begin(self) -> None:
        super().begin()
        self._good: dict[str, SchemataLines] = {}  # what could be used last, by UID
        self._members: list[tuple[PodMeta, str]] = []

    def pod_settings(self, pod: Pod) -> PodParts | None:
        return parts_of(pod)

    def groups(self, machine: ResctrlMachine) -> Mapping[str, WantedGroup]:
        pods = list(pods_of(self.states))
        uids = {meta.uid for meta in pods}
        self.settings.keep(uids)
        for uid in self._good.keys() - uids:
            del self._good[uid]
            self.rejections.forget(_key(uid))
        self._members = []
        found: dict[str, WantedGroup] = {}
        for meta in pods:
            parts = self.settings.of(meta.pod)
            lines = self._lines(meta, parts, machine) if parts is not None else None
            target = Target.resctrl(f"{POD_PREFIX}{meta.uid}", meta)
            if lines is not None and target.is_valid:
                reason = f"the pod asks for it in {ANNOTATION}"
                found[target.place] = WantedGroup(target, lines.l3, lines.mb, reason)
                self._members.append((meta, target.place))
        return found

    def members(self, groups: Mapping[str, WantedGroup]) -> Iterator[ResctrlMember]:
        for meta, group in self._members:
            for cgroup in cgroups_of(meta):
                yield ResctrlMember(meta, cgroup, group)

    def _lines(
        self, meta: PodMeta, parts: PodParts, machine: ResctrlMachine
    ) -> SchemataLines | None:
        """The lines of a pod; the last good ones while its annotation cannot be used here."""
        try:
            found = lines_for(parts, machine, place(meta.pod, ANNOTATION))
        except InvalidObject as err:
            self.rejections.reject(_key(meta.uid), err, meta.pod)
            return self._good.get(meta.uid)
        self.rejections.accept(_key(meta.uid))
        self._good[meta.uid] = found
        return found


def _key(uid: str) -> str:
    """The name under which a pod's parts are rejected; its annotation has the UID itself."""
    return f"{uid}/machine"
