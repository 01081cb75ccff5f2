"""The status pages of the real processes, in a real browser."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import ELSEWHERE, NARROW, WIDE, Browser, browser
from front import Front
from realcontrolplane import running_control_plane
from realdaemon import BUSY_POD, running_alone
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from koord.api.qos import KubeQoS
from koord.kube.access.config import ApiConfig
from koord.kube.client import ApiClient
from koord.kube.resource import NODES, PODS
from koordlet.plugin.testing import FakeHost

PODS_OF_A_NODE = 150
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
            "name": f"pod-{number}",
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
        window.run("document.querySelector(arguments[0]).focus()", css)
        window.driver.switch_to.active_element.send_keys(Keys.ENTER)
        text = window.until_says("dialog[open]", "In force" if "pods" in css else "rule")
        assert window.violations() == []
        window.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        window.until(lambda: not window.driver.find_elements(By.CSS_SELECTOR, "dialog[open]"))
        focused = window.run("return document.activeElement.dataset.key")
        assert focused == window.run("return document.querySelector(arguments[0]).dataset.key", css)
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
        assert window.messages() == []
        window.open("about:blank")
        window.driver.delete_all_cookies()
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


@pytest.fixture
async def front(api_config: ApiConfig, client: ApiClient) -> AsyncIterator[Front]:
    """A cluster with two nodes, and a pod that fits on neither."""
    front = Front(api_config)
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    conditions = [{"type": "Ready", "status": "True", "message": MARKUP}]
    status = {"capacity": room, "allocatable": room, "conditions": conditions}
    for name in ("n1", "n2"):
        front.objects.create(NODES.collection(), {"metadata": {"name": name}, "status": status})
    requests = {"requests": {"cpu": "1000"}}
    large = {
        "metadata": {"namespace": "shop", "name": "large", "uid": "uid-of-large"},
        "spec": {
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "c", "resources": requests}],
        },
        "status": {"phase": "Pending", "reason": MARKUP},
    }
    front.objects.create(PODS.collection(), large)
    await front.start()
    yield front
    await front.stop()


async def test_the_pages_of_the_control_plane_can_be_used_by_all(
    window: Browser, tmp_path: Path, front: Front
) -> None:
    look: dict[str, Callable[[], object]] = {
        "koord-descheduler": lambda: window.until_says("#health", "This daemon is ok"),
        "koord-scheduler": lambda: window.until_says("#health", "This daemon is ok"),
    }

    def looked(job: str, address: str) -> None:
        window.open(f"http://{address}/")
        look[job]()
        usable_by_all(window)

    async with running_control_plane(tmp_path, front.url) as targets:
        for job, address in targets.items():
            await asyncio.to_thread(looked, job, address)
