"""Killing a pod on a real kernel: its cgroup is empty afterwards, and no other process is hit."""

from koord.util.clock import SystemClock
from koordlet.executor.evictions.eviction import KillResult
from koordlet.executor.evictions.kill import PodKiller
from koordlet.executor.kernel.view import InlineWorker
from koordlet.host.host import Host

POD, NEIGHBOUR = "kubepods/besteffort/podu1", "kubepods/besteffort/podu2"
FORK = "if not os.fork(): time.sleep(600)"


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] not in "ZX"


async def test_a_pod_is_killed_and_its_neighbour_is_not(tree):
    """With all its containers, children included; a second time there is nothing to kill."""
    victims = [tree.make(f"{POD}/{name}").run(FORK) for name in ("c1", "c2")]
    neighbour = tree.make(f"{NEIGHBOUR}/c1").run()
    killer = PodKiller(Host(tree.paths), InlineWorker(), SystemClock())

    killing = await killer.kill(POD, "u1")

    assert (killing.killed, killing.error) == (4, "")
    assert (tree.base / POD / "c1/cgroup.procs").read_text() == ""
    assert not any(is_running(victim.pid) for victim in victims)
    neighbour.do("")
    assert await killer.kill(POD, "u1") == KillResult(0)
