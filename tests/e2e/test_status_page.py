"""The status pages of the real processes, in a real browser."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from koord.api.qos import KubeQoS
from koord.kube.client import CONFIG_MAPS, NODE_METRICS, NODES, PODS
from koordlet.plugin.testing import FakeHost
from tests.support.kube.apiserver import ApiServer
from tests.support.processes.agent import BUSY_POD, running_alone
from tests.support.processes.browser import ELSEWHERE, NARROW, WIDE, Browser, browser
from tests.support.processes.control_plane import (
    running_control_plane,
    running_manager,
    running_scheduler,
    scheduler_config,
)
from tests.support.processes.prometheus import free_port
from tests.support.scheduler.devices import CORE, RATIO, d8
from tests.support.scheduler.numa import topology_object

PODS_OF_A_NODE = 150
ROOM = {"cpu": "8", "memory": "16Gi", "pods": "110"}
MARKUP = '<img src="x" onerror="document.title=\'owned\'"><script>document.title="owned"</script>'


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Only where chromium is installed; in CI it must be."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        needs = "needs chromium (Debian: apt-get install chromium chromium-driver)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(needs)
    with browser(tmp_path_factory.mktemp("chromium")) as window:
        yield window


def pod(uid: str, number: int) -> dict[str, Any]:
    """A best-effort pod; what its owner may write freely is markup."""
    status = {"name": "c1", "containerID": "containerd://c1", "state": {"running": {}}}
    return {
        "metadata": {
            "name": f"pod-{number}" if number else MARKUP,
            "namespace": "shop",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": {"note": MARKUP},
        },
        "spec": {"containers": [{"name": "c1"}]},
        "status": {
            "phase": "Running",
            "qosClass": "BestEffort",
            "reason": MARKUP,
            "containerStatuses": [status],
        },
    }


def uid_of(number: int) -> str:
    return f"6f3c1a9e-0000-4000-8000-{number + 1:012}"


def many_pods(host: FakeHost) -> None:
    for number in range(1, PODS_OF_A_NODE):
        host.add_pod(uid_of(number), KubeQoS.BEST_EFFORT)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[str]:
    """An agent with as many pods as a node may have. Yields the page's address."""
    assert uid_of(0) == BUSY_POD
    pods = [pod(uid_of(number), number) for number in range(PODS_OF_A_NODE)]
    file = tmp_path / "pods.json"
    file.write_text(json.dumps({"kind": "PodList", "items": pods}))
    agent = running_alone(tmp_path / "agent", "n1", f"--pods-file={file}", lay_out=many_pods)
    async with agent as address:
        yield f"http://{address}/"


def usable_by_all(window: Browser, *, but: tuple[str, ...] = ()) -> None:
    """In light and dark, wide and narrow, without a message or a request to others."""
    for dark in (False, True):
        for width in (WIDE, NARROW):
            window.look(width=width, dark=dark)
            assert window.violations() == [], f"dark: {dark}, {width} px"
            assert window.overhang() == 0, f"{width} px"
    window.look()
    assert window.foreign_requests() == []
    assert window.messages() == []


async def test_the_agents_page_can_be_used_by_all(window: Browser, agent: str) -> None:
    def look() -> None:
        window.open(agent)
        window.until_says("#pods", f"{PODS_OF_A_NODE} of {PODS_OF_A_NODE}")
        window.until_says("#actions", "→")  # best effort was squeezed
        usable_by_all(window)
        assert len(window.driver.find_elements(By.CSS_SELECTOR, "#node canvas")) >= 4
        assert "owned" not in window.driver.title

    await asyncio.to_thread(look)


async def test_a_mark_and_a_pod_are_explained_by_keyboard(window: Browser, agent: str) -> None:
    """Enter opens, Escape closes, and the focus is where it was."""

    def opened_by_enter(css: str) -> str:
        window.find(css)
        key = window.run(
            "const e = document.querySelector(arguments[0]); e.focus(); return e.dataset.key", css
        )
        window.driver.switch_to.active_element.send_keys(Keys.ENTER)
        text = window.until_says("dialog[open]", "In force" if "pods" in css else "rule")
        assert window.violations() == []
        window.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        window.until(lambda: not window.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))
        window.until(lambda: window.run("return document.activeElement.dataset.key") == key)
        return text

    def look() -> None:
        window.open(agent)
        window.until_says("#pods", f"{PODS_OF_A_NODE} of {PODS_OF_A_NODE}")
        window.until_says("#actions", "→")
        assert "BECPUSuppress" in opened_by_enter("#actions td button")
        window.find("#pods input").send_keys("pod-77")
        window.until_says("#pods", "1 of 150", "pod-77")
        opened_by_enter("#pods td button")
        assert window.messages() == []

    await asyncio.to_thread(look)


async def test_drawing_a_line_of_150_pods(window: Browser, agent: str) -> None:
    """The time is said; the tables and charts go on with each line."""

    def look() -> None:
        window.open(agent)
        window.until(lambda: window.run("return window.koordFrames?.length > 15"))
        times = sorted(window.run("return window.koordFrames.slice(1)"))
        sys.stderr.write(f"p95 of {len(times)} lines: {times[int(len(times) * 0.95)]:.1f} ms\n")

    await asyncio.to_thread(look)


async def test_a_page_says_since_when_it_is_alone(window: Browser, tmp_path: Path) -> None:
    """And keeps what it has."""
    async with running_alone(tmp_path / "agent", "n1") as address:
        await asyncio.to_thread(window.open, f"http://{address}/")
        await asyncio.to_thread(window.until_says, "#connection", "data of")

    await asyncio.to_thread(window.until_says, "#connection", "disconnected since")
    assert "koordlet on n1" in await asyncio.to_thread(window.text, "h1")
    assert window.driver.find_elements(By.CSS_SELECTOR, "#node canvas")
    window.messages()  # of the connection that was refused


async def test_another_sites_name_needs_a_token(window: Browser, agent: str) -> None:
    """A name that leads here is no local client: the page asks, and shows nothing."""

    def look() -> None:
        window.open(agent.replace("127.0.0.1", ELSEWHERE))
        window.until_says("form", "A token is needed")
        window.find("#token").send_keys("wrong", Keys.ENTER)
        window.until_says("form", "A token is needed")
        assert "pod-1" not in window.text("main")
        window.messages()  # of the requests that were refused

    await asyncio.to_thread(look)


async def test_dry_run_is_switched_only_on_the_page_of_koordletctl(
    window: Browser, tmp_path: Path, agent: str
) -> None:
    """Its address serves once, and the button has the daemon's answer."""
    button = "[data-key='dry-run BECPUSuppress']"

    def look_only() -> None:
        window.open(agent)
        window.until_says("#plugins", "BECPUSuppress")
        assert not window.driver.find_elements(By.CSS_SELECTOR, button)

    def switch(url: str) -> None:
        window.open(url)
        assert window.find(button).text == "off"
        window.find(button).click()
        window.until_says(button, "on")
        assert window.violations() == []
        window.driver.refresh()  # the tab has kept the secret; the address has lost the token
        window.until_says(button, "on")
        assert window.driver.current_url == url.partition("?")[0]
        assert window.driver.get_cookies() == []
        assert window.messages() == []
        window.open("about:blank")
        window.open(url)
        assert "koordlet on" not in window.text("body")
        window.messages()  # that it was refused

    await asyncio.to_thread(look_only)
    ctl = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("koordletctl"),
        f"--run-dir={tmp_path / 'agent' / 'run'}",
        "page",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert ctl.stdout is not None
        await asyncio.to_thread(switch, (await ctl.stdout.readline()).decode().strip())
    finally:
        ctl.terminate()
        await asyncio.wait_for(ctl.wait(), 60)


def node(name: str) -> dict[str, Any]:
    status = {
        "capacity": ROOM,
        "allocatable": ROOM,
        "conditions": [{"type": "Ready", "status": "True", "message": MARKUP}],
    }
    return {"metadata": {"name": name}, "status": status}


def report(name: str, cores: int) -> dict[str, Any]:
    """A node's NodeMetric of now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    usage = {"resources": {"cpu": str(cores), "memory": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {},
        "status": {"updateTime": now, "nodeMetric": {"nodeUsage": usage}},
    }


def pending(name: str, cpu: str = "1000") -> dict[str, Any]:
    """A pod that waits; with the default, one that fits on no node."""
    requests = {"requests": {"cpu": cpu}}
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid-of-{name}"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": requests}],
        },
        "status": {"phase": "Pending", "reason": MARKUP},
    }


@pytest.fixture
async def cluster() -> AsyncIterator[ApiServer]:
    """A busy node, an idle one, and one of which nothing is known; and pods that wait."""
    server = ApiServer()
    for name, cores in (("n1", 7), (MARKUP, 1), ("n3", None)):
        server.objects.create(NODES.collection(), node(name))
        if cores is not None:
            server.objects.create(NODE_METRICS.collection(), report(name, cores))
    for name in ("large", MARKUP):
        server.objects.create(PODS.collection(), pending(name))
    server.objects.create(PODS.collection(), pending("small", "1"))
    await server.start()
    yield server
    await server.stop()


def look_at_descheduler(window: Browser) -> None:
    window.until_says("#health", "This daemon is")
    window.until_says("#state", "Leads, and evicts.")
    window.until_says("#nodes", "1 high", "1 low", "1 left alone", "3 of 3")
    assert (
        window.find("#nodes canvas").get_attribute("aria-label").startswith("Map of nodes by cpu")
    )
    window.find("#nodes input").send_keys("n1")
    window.until_says("#nodes", "1 of 3")
    window.find("#nodes td button").click()
    window.until_says("dialog[open]", "n1: high", "(low 45%, high 75%)")


def look_at_scheduler(window: Browser) -> None:
    window.until_says("#health", "This daemon is ok")
    window.until_says("#state", "Leads, and schedules.")
    window.until_says("#queue", "2 unschedulable", "rejected by NodeResourcesFit")
    window.until_says("#decisions", "Insufficient cpu")
    window.until_says("#decisions", "shop/small")
    window.find("#asked").send_keys("shop/small", Keys.ENTER)
    window.until_says("dialog[open]", "3 of 3 nodes", "NodeResourcesBalancedAllocation", "is on")
    window.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    window.find("#asked").clear()
    window.find("#asked").send_keys("shop/large", Keys.ENTER)
    window.until_says("dialog[open]", "NodeResourcesFit excludes", "3 nodes")


def look_at_manager(window: Browser) -> None:
    window.until_says("#health", "This daemon is")
    window.until_says("#state", "Leads, and writes.", "3 enabled", "1 stale", "BatchResource")
    window.until_says("#nodes", "3 nodes offer", "3 of 3", MARKUP)
    assert window.find("#nodes canvas").get_attribute("aria-label").startswith("Map of nodes by")
    window.find("#nodes input").send_keys("n1")
    window.until_says("#nodes", "1 of 3")
    window.find("#nodes td button").click()
    window.until_says("dialog[open]", "kubernetes.io/batch-cpu", "by", "BatchResource")


async def test_the_page_of_the_manager(window: Browser, tmp_path: Path, cluster: ApiServer) -> None:
    """Its map, a node explained, that all can use it; the name of a node stays text."""
    strategy = {"enable": True, "cpuReclaimThresholdPercent": 100}
    meta = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    data = {"colocation-config": json.dumps(strategy)}
    cluster.objects.create(CONFIG_MAPS.collection(), {"metadata": meta, "data": data})
    port = free_port()

    def look() -> None:
        window.open(f"http://127.0.0.1:{port}/")
        look_at_manager(window)
        assert window.violations() == []
        window.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        usable_by_all(window)
        assert "owned" not in window.driver.title

    async with running_manager(tmp_path, cluster.url, f"--port={port}"):
        await asyncio.to_thread(look)


async def test_the_pages_of_the_control_plane(
    window: Browser, tmp_path: Path, cluster: ApiServer
) -> None:
    """What they show, and that all can use it."""

    def look(address: str, at: Callable[[Browser], None]) -> None:
        window.open(f"http://{address}/")
        at(window)
        assert window.violations() == []
        window.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        usable_by_all(window)
        assert "owned" not in window.driver.title

    async with running_control_plane(tmp_path, cluster.url) as targets:
        await asyncio.to_thread(look, targets["koord-descheduler"], look_at_descheduler)
        await asyncio.to_thread(look, targets["koord-scheduler"], look_at_scheduler)


def topology_and_devices(server: ApiServer) -> None:
    """A node with two sockets and eight GPUs, and pods that hold some of them."""
    room = {**ROOM, "cpu": "16", "nvidia.com/gpu": "8"}
    status = {**node("d8")["status"], "allocatable": room, "capacity": room}
    server.objects.create(NODES.collection(), {**node("d8"), "status": status})
    found = d8()
    found["spec"]["devices"][0]["topology"]["pcieID"] = MARKUP
    topologies = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
    devices = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    server.objects.create(topologies, topology_object("d8"))
    server.objects.create(devices, found)
    cards = [{"minor": 3, "resources": {RATIO: "50", CORE: "50"}}]
    one = pending("bound", "4")
    one["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"}
    one["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "4-7"}),
        "scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": cards}),
    }
    one["spec"]["nodeName"] = "d8"
    one["spec"]["containers"][0]["resources"]["requests"] |= {RATIO: "50", CORE: "50"}
    one["status"] = {"phase": "Running"}
    server.objects.create(PODS.collection(), one)


async def test_the_picture_of_a_node(window: Browser, tmp_path: Path) -> None:
    """Its sockets, cores and GPUs, and who has them; what others name is text."""
    server = ApiServer()
    topology_and_devices(server)
    await server.start()
    config = scheduler_config("koord-scheduler", "NodeNUMAResource", "DeviceShare")
    port = free_port()

    def look() -> None:
        window.open(f"http://127.0.0.1:{port}/")
        window.until_says("#state", "Leads, and schedules.")
        window.find("#asked-node").send_keys("d8", Keys.ENTER)
        window.until_says("dialog[open]", "NUMA node 1", "core 7", "shop/bound", MARKUP[:40])
        window.until_says("dialog[open] table", "CPU 4, CPU 5, CPU 6, CPU 7, gpu 3 (in part)")
        shown = window.driver.find_elements(By.CSS_SELECTOR, "dialog[open] li.part.full")
        assert [one.text for one in shown] == ["CPU 4", "CPU 5", "CPU 6", "CPU 7"]
        (card,) = (
            one
            for one in window.driver.find_elements(By.CSS_SELECTOR, "dialog[open] li.part.shared")
            if one.text.startswith("gpu")
        )
        assert card.get_attribute("title") == "gpu 3: shop/bound; 50 %"
        for dark in (False, True):
            window.look(dark=dark)
            assert window.violations() == []
        window.look()
        assert window.messages() == []
        assert "owned" not in window.driver.title

    try:
        async with running_scheduler(tmp_path, server.url, config, port=port):
            await asyncio.to_thread(look)
    finally:
        await server.stop()
