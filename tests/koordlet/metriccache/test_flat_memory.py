"""Nothing grows: 4,000 generations of series that come and go."""

import gc
import sys
import tracemalloc

from koord.util.clock import stamp
from koordlet.metriccache.kinds import NODE_CPU_USAGE, POD_CPU_USAGE, RetentionClass, Sample

TICKS = 20_000
LIFE = 5  # ticks that a pod lives; a row is kept for 60


def test_churn_leaves_files_rows_and_memory_flat(make_cache, clock, tmp_path):
    """Four pods at a time, 4,000 generations."""
    cache = make_cache(tmp_path / "metrics", retentions=dict.fromkeys(RetentionClass, 60.0))
    file = tmp_path / "metrics" / "pod_cpu_usage.ring"

    def run(first: int, end: int) -> tuple[int, int, int]:
        for tick in range(first, end):
            clock.tick(1)
            pods = [(f"pod-{n}-{(tick + 7 * n) // LIFE}",) for n in range(4)]
            samples = [Sample(POD_CPU_USAGE, 1.0, pod) for pod in pods]
            cache.append(stamp(clock), [*samples, Sample(NODE_CPU_USAGE, 1.0)])
            if tick % 20 == 0:
                cache.aggregate_all(POD_CPU_USAGE, 60)
        return file.stat().st_size, cache.stats().file_bytes, len(cache.keys(POD_CPU_USAGE))

    early = run(0, TICKS // 10)
    gc.collect()
    blocks = sys.getallocatedblocks()
    run(TICKS // 10, TICKS - TICKS // 20)
    gc.collect()
    assert sys.getallocatedblocks() <= blocks + 300

    tracemalloc.start()  # for the end only: tracing makes everything many times slower
    try:
        run(TICKS - TICKS // 20, TICKS - TICKS // 25)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        late = run(TICKS - TICKS // 25, TICKS)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after <= before + 4096
    assert late[:2] == early[:2]
    assert early[2] <= 60
    assert late[2] <= 60
