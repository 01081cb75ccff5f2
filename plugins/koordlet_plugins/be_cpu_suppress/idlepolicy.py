"""Policy cpuIdle: best-effort pods run only on otherwise idle CPUs. Not in Koordinator."""

from koordlet.plugin import Claim, ExtensionPlugin, resources
from koordlet_plugins.be_cpu_suppress.evidence import Evidence, Room
from koordlet_plugins.be_cpu_suppress.policy import NodeFindings, best_effort_group, find_places

SCOPE = "idle"
REASON = "best-effort pods run as idle tasks do: only when nothing else wants the CPU"


class IdlePolicy:
    """Sets cpu.idle on the groups of best-effort pods.

    Not on the group above them: the kubelet renews its weight, which an idle group refuses.
    """

    looks = False

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._is_logged = False

    async def possible(self) -> bool:
        """Whether this kernel has cpu.idle; a missing one is logged once."""
        kernel = self._plugin.kernel
        has = await kernel.supports(resources.CPU_IDLE, best_effort_group(kernel.layout).place)
        if not has and not self._is_logged:
            self._is_logged = True
            self._plugin.log.warning(
                "cpu_idle.unsupported", needs=resources.CPU_IDLE.needs, instead="cpuset"
            )
        return has

    async def round(self, evidence: Evidence, seen: NodeFindings) -> float | None:
        """Claim cpu.idle for all present best-effort pods; no number of cores limits them."""
        places = await find_places(self._plugin.kernel, seen.pods)
        claims = (
            Claim(target=pod, resource=resources.CPU_IDLE, value=1, reason=REASON)
            for pod in places.pods
        )
        await self._plugin.claim_all(claims, scope=SCOPE)
        return None

    def must_give_way(self, room: Room) -> bool:
        """As Policy.must_give_way."""
        return False

    async def look(self, evidence: Evidence) -> float | None:
        """As Policy.look: the kernel itself is faster."""
        return None

    async def end(self) -> None:
        """As Policy.end."""
        await self._plugin.withdraw_all(scope=SCOPE)
