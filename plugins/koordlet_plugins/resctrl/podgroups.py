"""The control groups of single pods, which their annotation asks for."""

from collections.abc import Iterator, Mapping

from koord.api.decoding.annotation import place
from koord.api.pods.pod import Pod
from koordlet.plugin import InvalidObject, PodMeta, Target
from koordlet.plugin.claims import Part
from koordlet.plugin.pods import pods_of
from koordlet_plugins.resctrl.annotation import ANNOTATION, PodParts, lines_for, parts_of
from koordlet_plugins.resctrl.groups import (
    POD_PREFIX,
    Group,
    Member,
    ResctrlPlugin,
    cgroups_of,
    scopes,
)
from koordlet_plugins.resctrl.parts import Lines, Machine


class Resctrl(ResctrlPlugin[PodParts]):
    """Keeps a group for each pod with the annotation, and its processes in it."""

    gates = ("Resctrl",)
    may_claim = scopes(Part.PIN)
    part = Part.PIN

    def begin(self) -> None:
        super().begin()
        self._good: dict[str, Lines] = {}  # what could be used last, by UID
        self._members: list[tuple[PodMeta, str]] = []

    def wants(self, pod: Pod) -> PodParts | None:
        return parts_of(pod)

    def groups(self, machine: Machine) -> Mapping[str, Group]:
        pods = list(pods_of(self.states))
        uids = {meta.uid for meta in pods}
        self.settings.keep(uids)
        for uid in self._good.keys() - uids:
            del self._good[uid]
            self.rejections.forget(_key(uid))
        self._members = []
        found: dict[str, Group] = {}
        for meta in pods:
            parts = self.settings.of(meta.pod)
            lines = self._lines(meta, parts, machine) if parts is not None else None
            target = Target.resctrl(f"{POD_PREFIX}{meta.uid}", meta)
            if lines is not None and target.is_sound:
                reason = f"the pod asks for it in {ANNOTATION}"
                found[target.place] = Group(target, lines.l3, lines.mb, reason)
                self._members.append((meta, target.place))
        return found

    def members(self, groups: Mapping[str, Group]) -> Iterator[Member]:
        for meta, group in self._members:
            for cgroup in cgroups_of(meta):
                yield Member(meta, cgroup, group)

    def _lines(self, meta: PodMeta, parts: PodParts, machine: Machine) -> Lines | None:
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
