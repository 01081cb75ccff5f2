"""Third parties' packages in the real process: what is off, broken or in conflict breaks itself."""

import json
from pathlib import Path

import pytest

from koordlet.plugin import PluginRegistry
from koordlet.plugin.testing import FakeHost
from tests.support.kube.daemon_flags import host_flags

HANGS = """\
import time
from koordlet.plugin import ExtensionPlugin

def hang(*_):
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

class InSetup(ExtensionPlugin):
    def setup(self, client, metric_cache, states_informer):
        hang()
    async def run(self, stop):
        await stop.wait()

class InCallback(InSetup):
    def setup(self, client, metric_cache, states_informer):
        states_informer.register_callbacks("AllPods", "hang", "", hang)
"""

CLAIMS = """\
from koord.api.qos import KubeQoS
from koordlet.plugin import ExtensionPlugin, Level, ClaimScope, Target, resources

BE = KubeQoS.BEST_EFFORT

class Mine(ExtensionPlugin):
    may_claim = (ClaimScope(resources.CPU_QUOTA, Level.QOS, frozenset({BE})),)

    def setup(self, client, metric_cache, states_informer):
        pass

    async def run(self, stop):
        group = Target.qos_class(self.kernel.layout, BE)
        await self.claim(group, resources.CPU_QUOTA, 50000, reason="test")
        await stop.wait()
"""


def install(site: Path, module: str, source: str, entries: dict[str, str]) -> None:
    """Put a package where Python finds it, as pip does."""
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {module}:{value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{PluginRegistry.group}]\n{lines}")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "hangs", HANGS, {"HangsInSetup": "InSetup", "HangsInCallback": "InCallback"})
    install(site, "claims", CLAIMS, {"Mine": "Mine"})
    install(site, "lost", "import no_such_module_anywhere\n", {"Lost": "Lost"})
    return site


def plugins(daemon) -> dict[str, tuple[str, str]]:
    return {entry["name"]: (entry["state"], entry["reason"]) for entry in daemon.ctl("plugins")}


def test_strange_packages_break_themselves_only(koordlet, site: Path, tmp_path: Path):
    """Off: not called. Not to be imported, with gate and flag in the file: named, the rest counts.

    Who claims what a shipped plugin could claim has it while that one is off, and the shipped one
    is refused while it has it.
    """
    host = FakeHost(tmp_path / "host")
    host.add_pod("p1")
    config = tmp_path / "koordlet.yaml"

    def write(**gates: bool) -> None:
        new = config.with_suffix(".new")
        entries = {"log-level": "info", "lost-window": "5m", "feature-gates": gates}
        new.write_text(json.dumps(entries))
        new.rename(config)

    write(Lost=True, Mine=True, BECPUSuppress=False)
    daemon = koordlet(
        "--standalone", *host_flags(host.paths), f"--config={config}", PYTHONPATH=str(site)
    )
    daemon.wait_ready()
    daemon.until(lambda: plugins(daemon)["Mine"][0] == "running")
    found = plugins(daemon)
    assert found["HangsInSetup"][0] == found["HangsInCallback"][0] == "disabled"
    assert found["Lost"][0] == "broken"
    assert "No module named 'no_such_module_anywhere'" in found["Lost"][1]
    status, text = daemon.get("/healthz")
    assert status == 200
    assert "degraded: plugin Lost: broken: could not be loaded: Lost = lost:Lost" in text
    assert daemon.events("flags.without_effect")[0]["flags"] == ["lost-window"]

    write(Lost=True, Mine=True, BECPUSuppress=True)
    daemon.until(lambda: plugins(daemon)["BECPUSuppress"][0] == "broken")
    assert "Mine is on and may claim it" in plugins(daemon)["BECPUSuppress"][1]

    write(Lost=False, Mine=False, BECPUSuppress=True)
    daemon.until(lambda: plugins(daemon)["BECPUSuppress"][0] == "running")
    assert daemon.stop() == 0
