"""`kill -9` at any moment, and the next start: the windows are still there."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from koordlet.plugin.testing import FakeHost

MOMENTS = (0.0, 0.95)  # seconds after the samples were seen: around the next pass, too
PODS = 20


@pytest.fixture
def start(koordlet, tmp_path):
    host = FakeHost(tmp_path / "host")
    for number in range(PODS):
        host.add_pod(f"p{number}")
    flags = [
        "--standalone",
        "--report-interval=1s",
        f"--cgroup-root-dir={host.paths.cgroup}",
        f"--proc-root-dir={host.paths.proc}",
        f"--sys-root-dir={host.paths.sys}",
    ]
    return lambda run_dir: koordlet(*flags, run_dir=run_dir)


def samples(daemon):
    """Samples in the window by series, and the number of all series."""
    found = {}
    for kind in ("node_memory_usage", "pod_memory_usage"):
        for series in daemon.ctl(f"metrics/{kind}?window=5m")["series"]:
            found[kind, series.get("pod_uid")] = series["count"]
    return found


def test_what_was_measured_survives_a_kill(start, tmp_path):
    """No series is lost, and no sample but the one that was being written."""

    def live_and_die(moment):
        run_dir = tmp_path / f"run-{moment}"
        daemon = start(run_dir)
        daemon.wait_ready()
        daemon.until(lambda: len(samples(daemon)) == 1 + PODS)
        before = samples(daemon)
        time.sleep(moment)
        daemon.kill()

        daemon = start(run_dir)
        daemon.wait_ready()
        after = samples(daemon)
        assert after.keys() == before.keys()
        assert all(after[key] >= before[key] for key in before), (before, after)
        assert not daemon.events("ring.discarded")
        assert sum(event["columns_dropped"] for event in daemon.events("ring.damaged")) <= 2
        assert "Traceback" not in daemon.stderr
        assert daemon.stop() == 0

    with ThreadPoolExecutor(len(MOMENTS)) as pool:
        list(pool.map(live_and_die, MOMENTS))
