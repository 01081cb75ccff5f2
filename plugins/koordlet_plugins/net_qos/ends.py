"""The node's ends of pods' interfaces, as the kernel shows them for a process of each pod."""

from collections.abc import Sequence

from koordlet.plugin import ExtensionPlugin, PodMeta, resources
from koordlet.plugin.network import is_interface_name
from koordlet.plugin.pods import Process, ProcessLists, by_pid, containers_of


class PodEnds:
    """Looks for them, for one plugin; each process once, and again while it has none."""

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._lists = ProcessLists(plugin)
        self._found: dict[Process, str] = {}

    def begin(self) -> None:
        """Forget what was found."""
        self._lists.begin()
        self._found = {}

    async def of(self, pods: Sequence[PodMeta]) -> dict[str, str]:
        """Return the name of the node's end by the pod's UID; none for a pod without one."""
        groups = {meta.uid: group for meta in pods if (group := _group(meta))}
        lists = await self._lists.of(list(groups.values()))
        processes = {
            uid: by_pid(found)[0] for uid, group in groups.items() if (found := lists.get(group))
        }
        kept = {each: self._found[each] for each in processes.values() if each in self._found}
        self._found = kept | await self._look([e for e in processes.values() if e not in kept])
        return {
            uid: self._found[process]
            for uid, process in processes.items()
            if process in self._found
        }

    async def _look(self, processes: Sequence[Process]) -> dict[Process, str]:
        if not processes:
            return {}
        kernel = self._plugin.kernel
        names = await kernel.read_many(
            [(resources.PROCESS_INTERFACE, str(each.pid)) for each in processes]
        )
        # A pid may have become another process's meanwhile.
        starts = await kernel.read_many(
            [(resources.PROCESS_START, str(each.pid)) for each in processes]
        )
        return {
            process: name.value
            for process, name, start in zip(processes, names, starts, strict=True)
            if name is not None
            and is_interface_name(name.value)
            and start is not None
            and start.value == process.start_time
        }


def _group(meta: PodMeta) -> str:
    """The cgroup of a process that is in the pod's network namespace: of its sandbox, if known."""
    return meta.sandbox or next((each.cgroup for each in containers_of(meta)), "")
