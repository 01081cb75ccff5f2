"""In the daemon: without a socket nothing is loaded, with one the rules are the plugins' own."""

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from koord.api.pod import Pod
from koordlet.daemon.settings import load_settings
from koordlet.plugin import Claim, ClaimScope, Level, PodMeta, Target, resources
from koordlet.plugin.pods import ReconcilingPlugin
from koordlet.plugin.testing import FakeHost, PluginHarness, SimulatedClock, make_pod

SHARES = resources.CPU_SHARES


def test_the_daemon_does_not_load_it_before_there_is_a_socket():
    """NRI is on by default, and most nodes have none."""
    code = (
        "import sys, koordlet.cli.daemon, koordlet.daemon.components\n"
        "print([name for name in sys.modules if name.startswith('koordlet.runtimehooks')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_it_does_not_load_what_is_for_devices():
    """Most nodes with NRI have none."""
    code = (
        "import sys, koordlet.runtimehooks.client, koordlet.daemon.runtimehooks\n"
        "print([name for name in sys.modules if 'devices' in name or 'deviceinj' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["GPUEnvInject", "RDMADeviceInject"])
def test_an_injector_can_be_in_dry_run_alone(name):
    settings = load_settings(
        [f"--dry-run={name}", f"--feature-gates={name}=true"],
        {},
        clock=SimulatedClock(),
        metrics=CollectorRegistry(),
        discover=lambda registry: (),
    )

    assert settings.dry_run.covers(name)
    assert settings.dry_run.to_json() == [name]
    assert settings.gates.not_built() == []


class Shares(ReconcilingPlugin[int, int]):
    """Gives every pod 100 shares."""

    may_claim = (ClaimScope(SHARES, Level.POD),)

    def rule(self) -> int:
        return 100

    def pod_settings(self, pod: Pod) -> int:
        return 1

    def claims(self, meta: PodMeta, pod_settings: int, rule: int) -> list[Claim]:
        return [Claim(target=Target.of_pod(meta), resource=SHARES, value=rule, reason="all")]


@pytest.mark.parametrize("comes", [True, False])
async def test_a_pod_that_is_announced_has_its_values_before_it_is_listed(tmp_path, comes):
    """And keeps them when it comes; when it does not, they are restored."""
    host = FakeHost(tmp_path)
    group = host.add_pod("new").group
    async with PluginHarness(Shares(), gates=(), host=host) as harness:
        pod = make_pod("new")
        await harness.plugin.prepare(pod)
        assert group.read("cpu/cpu.shares").strip() == "100"

        await harness.advance(30)
        assert group.read("cpu/cpu.shares").strip() == "100"
        if comes:
            harness.set_pods(pod)
        await harness.advance(60)

        assert group.read("cpu/cpu.shares").strip() == ("100" if comes else "1024")
        harness.set_pods()
        await harness.advance(1)
        assert group.read("cpu/cpu.shares").strip() == "1024"
