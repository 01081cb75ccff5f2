"""What a pod without a node waits for: which CPUs there are, and how they are scattered."""

from collections.abc import Iterator

import numpy as np

from koord_scheduler_plugins.node_numa_resource.accumulator import BindPolicy
from koord_scheduler_plugins.node_numa_resource.pods import Wish
from koord_scheduler_plugins.node_numa_resource.table import MachineTable


def advice(wish: Wish, table: MachineTable) -> Iterator[str]:
    """Yield sentences on the CPUs of nodes, for a pod that gets none; costs no trial."""
    if not wish.binds:
        return
    count, known = wish.milli_cpu // 1000, table.column("threads") > 0
    if not known.all():
        yield (
            f"{np.count_nonzero(~known)} of {len(known)} nodes have no CPU topology: koordlet does "
            "not run there, or cannot write NodeResourceTopology"
        )
    if not known.any():
        return
    free = table.column("free")[known]
    whole, cores = table.column("whole")[known], table.column("cores")[known]
    if int(free.max()) < count:
        most = int(free.max())
        yield f"{count} CPUs of its own are requested, and at most {most} are free on one node"
        return
    lacks = {
        BindPolicy.FULL_PCPUS: (whole, "CPUs of whole cores", "FullPCPUs"),
        BindPolicy.SPREAD_BY_PCPUS: (cores, "CPUs of different cores", "SpreadByPCPUs"),
    }
    if wish.required is None:
        return
    column, what, policy = lacks[wish.required]
    if int(column.max()) < count:
        fits = int(np.count_nonzero(free >= count))
        yield (
            f"{count} {what} are requested, and at most {int(column.max())} are free on one node; "
            f"with preferredCPUBindPolicy {policy} in place of the required one, CPUs would be "
            f"enough on {fits} nodes"
        )
