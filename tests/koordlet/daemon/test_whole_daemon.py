"""The whole daemon on a fake host: what it serves, and how its health follows its work."""

import asyncio
import json

import pytest

from koord.api.qos import KubeQoS
from koordlet.daemon.runtimehooks import HooksPart
from koordlet.host.cgroups.layout import Driver

MIB = 2**20


@pytest.mark.parametrize(
    ("version", "driver", "kube_root"),
    [
        (1, Driver.CGROUPFS, ""),
        (2, Driver.SYSTEMD, ""),
        (2, Driver.SYSTEMD, "kubelet.slice/kubelet-kubepods.slice"),
    ],
)
async def test_what_the_kernel_counts_is_reported(daemon, version, driver, kube_root):
    """Both cgroup versions and drivers, also nested as kind does, make the same report."""
    host = daemon.use_host(version=version, driver=driver, kube_root=kube_root)
    host.use_memory(4096 * MIB, page_cache=512 * MIB)
    pod = daemon.busy_pod("11111111-2222-3333-4444-555555555555", cores=0.25)
    pod.group.use_memory(100 * MIB, page_cache=30 * MIB)
    await daemon.start("--report-interval=1s")
    status, text = await daemon.get("/nodemetric")
    assert (status, "no NodeMetric yet" in text) == (503, True)

    await daemon.seconds(4)

    report = await daemon.node_metric()
    assert report["metadata"]["name"] == "n1"
    found = report["status"]
    assert found["updateTime"] == "2023-11-14T22:13:24Z"
    assert found["nodeMetric"]["nodeUsage"]["resources"] == {
        "cpu": "2",
        "memory": "4Gi",
    }
    assert found["nodeMetric"]["systemUsage"]["resources"]["cpu"] == "1750m"
    [usage] = found["podsMetric"]
    assert usage["name"] == pod.uid
    assert usage["podUsage"]["resources"] == {"cpu": "250m", "memory": "100Mi"}


async def test_health_and_readiness_name_what_they_look_at(daemon):
    """Liveness is the sampling pass, readiness the states too, health everything."""
    await daemon.start("--report-interval=1s")
    await daemon.seconds(2)

    assert await daemon.get("/healthz") == (200, "ok")
    assert await daemon.get("/livez?verbose") == (200, "[+]sampling ok\nok\n")
    assert await daemon.get("/readyz?verbose") == (200, "[+]sampling ok\n[+]states ok\nok\n")
    _, text = await daemon.get("/healthz?verbose")
    for part in ("collector node_resource", "reporter", "source pods", "plugin Probe"):
        assert f"[+]{part} ok" in text


async def test_the_metrics_endpoints_share_the_families_out(daemon):
    """About the agent, about the node, and both."""
    await daemon.start()
    await daemon.seconds(2)

    assert await daemon.metric("koordlet_node_used_cpu_cores") == [2.0]
    assert await daemon.metric("koordlet_start_time") == [1_700_000_000]
    _, internal = await daemon.get("/internal-metrics")
    _, external = await daemon.get("/external-metrics")
    assert "koordlet_start_time" in internal
    assert "koordlet_start_time" not in external


async def test_ctl_answers_with_the_same_figures(daemon):
    """Status, top and metrics over the socket in the run directory."""
    daemon.busy_pod("p1", KubeQoS.BEST_EFFORT, cores=0.5)
    await daemon.start()
    await daemon.seconds(3)

    status = await daemon.ctl("status")
    assert (status["node"], status["mode"], status["pods"]) == ("n1", "standalone", 1)
    assert status["health"] == "ok"
    top = await daemon.ctl("top")
    assert top["node"]["cpu_cores"] == pytest.approx(2.0)
    [row] = top["pods"]
    assert (row["uid"], row["qos"], row["cpu_cores"]) == ("p1", "BE", pytest.approx(0.5))
    [plugin] = await daemon.ctl("plugins")
    assert (plugin["name"], plugin["state"]) == ("Probe", "disabled")
    assert {finding["area"] for finding in await daemon.ctl("doctor")}


async def test_a_report_is_withheld_while_the_node_cannot_be_measured(daemon):
    """Old data are not stamped anew: the last report stays, /healthz says why, and it recovers."""
    await daemon.start("--report-interval=1s")
    await daemon.seconds(3)
    stat = (daemon.host.paths.proc / "stat").read_bytes()
    daemon.each_second.append(lambda: daemon.host.write("proc/stat", "cpu  1 2"))

    await daemon.seconds(4)
    assert (await daemon.node_metric())["status"]["updateTime"] == "2023-11-14T22:13:23Z"
    assert (await daemon.metric("koordlet_node_used_cpu_cores")) == []
    status, text = await daemon.get("/healthz")
    assert status == 503
    assert "unhealthy: collector node_resource: no round did its work" in text
    assert "reporter" in text
    assert "node_cpu_usage" in text or "node CPU" in text
    assert (await daemon.get("/livez"))[0] == 200
    assert len(daemon.events("report.withheld")) == 1

    daemon.each_second.pop()
    daemon.host.write("proc/stat", stat)
    await daemon.seconds(4)
    assert (await daemon.node_metric())["status"]["updateTime"] == "2023-11-14T22:13:31Z"
    assert await daemon.get("/healthz") == (200, "ok")
    assert len(daemon.events("report.resumed")) == 1


async def test_page_cache_counts_when_the_policy_asks_for_it(daemon):
    """A new NodeMetric spec takes effect without a restart, in samples and reports."""
    daemon.host.use_memory(1000 * MIB, page_cache=200 * MIB)
    await daemon.start("--report-interval=1s")
    await daemon.seconds(2)
    report = (await daemon.node_metric())["status"]
    assert report["nodeMetric"]["nodeUsage"]["resources"]["memory"] == "1000Mi"

    daemon.set_spec(nodeMemoryCollectPolicy="usageWithPageCache")
    await daemon.seconds(2)
    report = await daemon.node_metric()
    assert report["spec"]["metricCollectPolicy"]["nodeMemoryCollectPolicy"] == "usageWithPageCache"
    resources = report["status"]["nodeMetric"]["nodeUsage"]["resources"]
    assert resources["memory"] == "1200Mi"


async def test_a_longer_window_is_kept_from_when_it_is_asked_for(daemon):
    """The cache follows the spec without a restart."""
    daemon.busy_pod("p1")
    await daemon.start()
    await daemon.seconds(2)
    ring = daemon.run_dir / "metrics" / "pod_cpu_usage.ring"
    before = ring.stat().st_size
    daemon.set_spec(aggregateDurationSeconds=900)
    await daemon.seconds(2)

    assert ring.stat().st_size > 2 * before
    [series] = (await daemon.ctl("metrics/pod_cpu_usage"))["series"]
    assert series["count"] >= 3


async def test_collected_page_cache_without_the_policy(daemon):
    """--enable-pagecache-collector makes the series; the report keeps to its policy."""
    daemon.host.use_memory(1000 * MIB, page_cache=200 * MIB)
    await daemon.start("--enable-pagecache-collector", "--report-interval=1s")
    await daemon.seconds(2)

    series = await daemon.ctl("metrics/node_memory_usage_with_page_cache")
    assert json.dumps(1200.0 * MIB) in json.dumps(series)
    usage = (await daemon.node_metric())["status"]["nodeMetric"]["nodeUsage"]
    assert usage["resources"]["memory"] == "1000Mi"


async def test_a_plugin_that_fails_is_named_and_the_rest_goes_on(daemon):
    """One bad thing breaks one thing."""
    daemon.probe.error = RuntimeError("no such luck")
    await daemon.start("--feature-gates=Probe=true", "--report-interval=1s")
    await daemon.seconds(3)

    status, text = await daemon.get("/healthz")
    assert status == 200
    assert "degraded: plugin Probe" in text
    assert "no such luck" in text
    await daemon.node_metric()


async def test_gates_that_need_the_container_runtime_say_that_it_is_not_there(daemon):
    """Its containers would start without the devices of their pods, and nothing would say so."""
    await daemon.start("--feature-gates=GPUEnvInject=true")
    await daemon.seconds(2)
    status, reason = (await daemon.problems())["runtime hooks"]
    assert status == "degraded"
    assert reason.startswith("GPUEnvInject: wanted the container runtime's socket ")
    assert "component nri" in reason


async def test_stopping_ends_the_plugins_first_and_leaves_no_socket(daemon):
    """run returns, stop follows; files stay for the next start."""
    await daemon.start("--feature-gates=Probe=true")
    await daemon.seconds(2)
    await daemon.stop()

    assert daemon.probe.calls == ["run", "returned", "stop"]
    assert not (daemon.run_dir / "ctl.sock").exists()
    assert [len(daemon.events(name)) for name in ("daemon.stopping", "daemon.stopped")] == [1, 1]


async def test_plugins_end_once_the_runtime_has_done_what_it_was_told(daemon, monkeypatch):
    """Else it would set values again after they were restored; values that stay need no wait."""
    done = asyncio.Event()

    async def settle(_: HooksPart) -> None:
        await done.wait()

    monkeypatch.setattr(HooksPart, "settle", settle)
    await daemon.start("--feature-gates=Probe=true")
    stopping = asyncio.create_task(daemon.stop())
    await daemon.clock.settle()
    assert daemon.probe.calls == ["run"]

    done.set()
    await stopping
    assert daemon.probe.calls == ["run", "returned", "stop"]

    done.clear()
    await daemon.start("--feature-gates=Probe=true", "--on-exit=keep")
    await daemon.stop()
    assert daemon.probe.calls[3:] == ["run", "returned", "stop"]


async def test_windows_survive_a_restart_but_not_a_reboot(daemon):
    """A gap in time is a gap, never zeros; another boot id starts empty."""
    await daemon.start()
    await daemon.seconds(5)
    await daemon.stop()
    await daemon.clock.advance(10)
    daemon.host.use_cpu(20.0, idle=20.0)
    await daemon.start()
    await daemon.seconds(3)
    [series] = (await daemon.ctl("metrics/node_cpu_usage"))["series"]
    assert series["count"] == 8
    assert series["avg"] == pytest.approx(2.0)
    await daemon.stop()

    daemon.host.write("proc/sys/kernel/random/boot_id", "00000000-8fa2-46c4-9aeb-64c0a40defa8\n")
    await daemon.start()
    await daemon.seconds(2)
    [series] = (await daemon.ctl("metrics/node_cpu_usage"))["series"]
    assert series["count"] == 2


async def test_clock_steps_and_suspend_bend_no_figure(daemon):
    """Rates are by the monotonic clock, windows by boot time, stamps by the wall clock."""
    await daemon.start("--report-interval=1s")
    await daemon.seconds(3)
    daemon.clock.step_wall(-7200)
    await daemon.seconds(2)
    daemon.clock.step_wall(+86400)
    await daemon.seconds(2)
    daemon.clock.suspend(100)
    await daemon.seconds(2)

    report = (await daemon.node_metric())["status"]
    assert report["nodeMetric"]["nodeUsage"]["resources"]["cpu"] == "2"
    assert report["updateTime"] == "2023-11-15T20:15:09Z"
    assert await daemon.get("/healthz") == (200, "ok")
