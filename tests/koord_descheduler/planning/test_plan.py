"""Plans: one cycle of the configured profiles, in dry-run, and its report."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from koord.component.terminal import plain
from koord.plugin.args import takes_args
from koord_descheduler.cli.plan import main
from koord_descheduler.cli.views import plan_view
from koord_descheduler.config import parse_configuration
from koord_descheduler.framework.profile import known_plugins
from koord_descheduler.planning import (
    Plan,
    UnbuildableProfiles,
    make_plan,
    offline_services,
    plan_report,
)
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Evictor,
    Handle,
    NodeDecision,
    PluginRegistry,
    PodDecision,
)
from koord_descheduler.plugin.testing import FakeCluster
from koord_descheduler_plugins.low_node_load.args import AnomalyCondition, LowNodeLoadArgs

HEAD = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration"}
AT = 1_784_875_965.0  # 2026-07-24T06:52:45Z


class Emptier(BalancePlugin):
    """Empties the first node, and says of each of its pods why it goes or stays."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self._handle = handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        handle, evictor = self._handle, self._handle.evictor()
        first, *others = nodes
        names = tuple(node.name for node in others)
        found: list[NodeDecision | PodDecision] = [
            NodeDecision(
                profile=handle.profile,
                plugin=self.name,
                node=first.name,
                verdict="first",
                reason="it is the first one",
                facts={"pods": 3, "ratio": math.inf},
                hint="another name",
            )
        ]
        for pod in handle.list_pods_on_node(first.name):
            reason = evictor.reject_reason(pod)
            if not reason:
                await evictor.evict(pod, EvictOptions(reason="the node is to be empty"))
            found.append(
                PodDecision(
                    profile=handle.profile,
                    plugin=self.name,
                    pod=pod.key,
                    node=first.name,
                    action=Action.STAY if reason else Action.EVICT,
                    reason=reason or "the node is to be empty",
                    candidates=() if reason else names,
                )
            )
        handle.services.decisions.publish(lambda: found)


class Silent(BalancePlugin):
    """Evicts one pod and publishes nothing."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self._handle = handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        pod = self._handle.list_pods_on_node("n2")[0]
        await self._handle.evictor().evict(pod, EvictOptions(reason="so it is"))


class Failing(BalancePlugin):
    def __init__(self, args: Any, handle: Handle) -> None:
        if args:
            raise ValueError("no args wanted")

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        raise RuntimeError("out of order")


class Strict(Evictor):
    """Keeps pods called db; must not be asked to evict."""

    def __init__(self, args: Any, handle: Handle) -> None: ...

    def filter(self, pod: ClusterPod) -> bool:
        return pod.name != "db"

    def reject_reason(self, pod: ClusterPod) -> str:
        return "" if self.filter(pod) else "databases stay"

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        raise AssertionError("a plan evicts nothing")


@pytest.fixture
def registry() -> PluginRegistry:
    found = PluginRegistry()
    for factory in (Emptier, Silent, Failing, Strict):
        found.register(factory.__name__, factory)
    return found


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster()
    for name in ("n1", "n2", "n3", "n4", "n5"):
        found.node(name)
    for name, node in (("web", "n1"), ("db", "n1"), ("cache", "n1"), ("shop", "n2")):
        found.pod(name, node)
    return found


def configured(*balance: str, args: Any = None, **settings: Any) -> dict[str, Any]:
    everything = [{"name": "*"}]
    plugins: dict[str, Any] = {"balance": {"enabled": [{"name": name} for name in balance]}}
    for point in ("evict", "filter"):
        plugins[point] = {"disabled": everything, "enabled": [{"name": "Strict"}]}
    config = [{"name": name, "args": one} for name, one in (args or {}).items()]
    profile = {"name": "p", "plugins": plugins, "pluginConfig": config}
    return {**HEAD, "deschedulingInterval": "10s", "profiles": [profile], **settings}


async def plan(
    cluster: FakeCluster, registry: PluginRegistry, *balance: str, **settings: Any
) -> Plan:
    text = json.dumps(configured(*balance, **settings)).encode()
    read = parse_configuration(text, Path("c"), known_plugins(registry))
    return await make_plan(read.configuration, registry, offline_services(cluster.state, AT))


async def test_what_would_be_done_and_why(cluster: FakeCluster, registry: PluginRegistry) -> None:
    """Of the pods that stay, too, in the words of the filter; evictions that none published."""
    found = await plan(cluster, registry, "Emptier", "Silent")

    assert found.considered == 5
    assert [one.verdict for one in found.nodes] == ["first"]
    assert [(one.pod, one.plugin, one.action, one.reason) for one in found.pods] == [
        ("default/web", "Emptier", Action.EVICT, "the node is to be empty"),
        ("default/db", "Emptier", Action.STAY, "databases stay"),
        ("default/cache", "Emptier", Action.EVICT, "the node is to be empty"),
        ("default/shop", "Silent", Action.EVICT, "so it is"),
    ]


async def test_limits_count_in_a_plan(cluster: FakeCluster, registry: PluginRegistry) -> None:
    found = await plan(cluster, registry, "Emptier", maxNoOfPodsToEvictPerNode=1)

    assert found.pods[2].action is Action.REFUSED
    assert found.pods[2].reason.endswith("the limit of evictions, node, is reached")


async def test_a_plugin_that_fails_is_named_and_the_rest_is_planned(
    cluster: FakeCluster, registry: PluginRegistry
) -> None:
    found = await plan(cluster, registry, "Failing", "Emptier")

    assert found.count(Action.EVICT) == 2
    assert len(found.errors) == 1
    assert "out of order" in found.errors[0]


async def test_plugins_that_cannot_be_made_end_it(
    cluster: FakeCluster, registry: PluginRegistry
) -> None:
    with pytest.raises(UnbuildableProfiles, match="no args wanted"):
        await plan(cluster, registry, "Failing", args={"Failing": {"x": 1}})


async def test_a_plugin_waits_for_no_further_cycle(
    cluster: FakeCluster, registry: PluginRegistry
) -> None:
    """A node counts as hot when it is so in the only cycle, in each pool."""
    seen = []

    @takes_args(LowNodeLoadArgs)
    def make(args: LowNodeLoadArgs, handle: Handle) -> BalancePlugin:
        seen.append(args)
        return Emptier(args, handle)

    registry.register("Load", make)
    await plan(cluster, registry, "Load", args={"Load": {"nodePools": [{"name": "a"}]}})

    [args] = seen
    for condition in (args.anomaly_condition, args.node_pools[0].anomaly_condition):
        assert condition.consecutive_abnormalities == 1
        assert condition.consecutive_normalities == 3
    assert LowNodeLoadArgs().as_if_lasting().anomaly_condition == AnomalyCondition(
        consecutive_abnormalities=1
    )


async def test_only_one_node(cluster: FakeCluster, registry: PluginRegistry) -> None:
    """As a source or as a candidate."""
    found = await plan(cluster, registry, "Emptier", "Silent")

    assert [one.pod for one in found.only("n2").pods] == [
        "default/web",
        "default/cache",
        "default/shop",
    ]
    assert found.only("n2").nodes == ()
    assert len(found.only("n1").nodes) == 1


async def test_the_report_is_json(cluster: FakeCluster, registry: PluginRegistry) -> None:
    """Figures that JSON does not know are null."""
    report = plan_report(await plan(cluster, registry, "Emptier"))

    json.dumps(report, allow_nan=False)
    assert report["at"] == "2026-07-24T06:52:45Z"
    assert report["evictions"] == 2
    assert report["nodes"][0]["facts"] == {"pods": 3, "ratio": None}
    assert report["pods"][1] == {
        "profile": "p",
        "plugin": "Emptier",
        "pod": "default/db",
        "node": "n1",
        "action": "stay",
        "reason": "databases stay",
        "candidates": [],
        "facts": {},
    }


async def test_the_table(cluster: FakeCluster, registry: PluginRegistry) -> None:
    report = plan_report(await plan(cluster, registry, "Emptier", "Silent"))

    assert plain(plan_view(report)).splitlines() == [
        "plan for 2026-07-24T06:52:45Z: of 5 nodes, 3 pods would be evicted, 0 are refused, 1 stay",
        "",
        "NODE  VERDICT  BY       WHY                  WOULD CHANGE WITH",
        "n1    first    Emptier  it is the first one  another name",
        "",
        "EVICT          FROM  TO ONE OF              BY       WHY",
        "default/web    n1    n2, n3, n4 and 1 more  Emptier  the node is to be empty",
        "default/cache  n1    n2, n3, n4 and 1 more  Emptier  the node is to be empty",
        "default/shop   n2    -                      Silent   so it is",
        "",
        "STAYS       ON  OUTCOME  BY       WHY",
        "default/db  n1  stay     Emptier  databases stay",
    ]


# The command


def item(kind: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **rest}


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    evil = item("Pod", "web\u001b[2J", spec={"nodeName": "n1"})
    items = [
        item("Node", "n1", status=ready),
        item("Node", "n2", status=ready),
        item("Pod", "db", spec={"nodeName": "n1"}),
        evil,
        item("ConfigMap", "x"),
        item("Pod", "broken", spec=7),
    ]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configured("Emptier")))
    return path


def test_the_command_prints_a_plan(
    dump: Path, config: Path, registry: PluginRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was not read is said; no name reaches the terminal as a control sequence."""
    assert main(["--from", str(dump), "--config", str(config)], registry) == 0

    out = capsys.readouterr().out
    assert "read: node 2, pod 2\n" in out
    assert "not read, as of no use here: ConfigMap 1\n" in out
    assert "malformed, left out: pod broken: wanted" in out
    assert "default/web\\x1b[2J  n1    n2" in out
    assert "\x1b" not in out


def test_the_command_prints_json(
    dump: Path, config: Path, registry: PluginRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--from", str(dump), "--config", str(config), "-o", "json"]
    assert main([*args, "--now", "2026-07-24T06:52:45Z", "--node", "n2"], registry) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "Plan"
    assert report["at"] == "2026-07-24T06:52:45Z"
    assert [one["pod"] for one in report["pods"]] == ["default/web\x1b[2J"]
    assert report["input"]["objects"] == {"node": 2, "pod": 2}
    assert report["input"]["rejections"] == 1


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--node", "n7"], "--node: found 'n7'; wanted the name of a node of the cluster"),
        (["--low", "cpu=20"], "set thresholds in the file"),
        (["--from", "/dev/null"], "not a regular file"),
        (["--config", "/absent"], "cannot be read"),
    ],
)
def test_a_wrong_command_line_is_said_in_a_line(
    args: list[str],
    error: str,
    dump: Path,
    config: Path,
    registry: PluginRegistry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--from", str(dump), "--config", str(config), *args], registry) == 2

    found = capsys.readouterr().err
    assert error in found
    assert found.count("\n") == 1


def test_a_plan_that_is_not_whole_is_no_success(
    dump: Path, tmp_path: Path, registry: PluginRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the other plugins decided is printed."""
    path = tmp_path / "failing.json"
    path.write_text(json.dumps(configured("Failing", "Emptier")))
    assert main(["--from", str(dump), "--config", str(path)], registry) == 1

    out, err = capsys.readouterr()
    assert "the node is to be empty" in out
    assert "the plan is not whole: p: plugin Failing: RuntimeError('out of order')" in err


def test_a_dump_without_nodes_is_an_error(
    tmp_path: Path, config: Path, registry: PluginRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what was wrong in it."""
    (tmp_path / "x.json").write_text('{"kind": "List", "items": [{]}')
    args = ["--from", str(tmp_path / "x.json"), "--config", str(config)]

    assert main(args, registry) == 2
    assert "x.json: wanted an object or a list" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["cpu", "cpu=many", "--now=yesterday"])
def test_a_malformed_value_is_refused(value: str, dump: Path, registry: PluginRegistry) -> None:
    args = [value] if value.startswith("-") else ["--low", value]
    with pytest.raises(SystemExit) as caught:
        main(["--from", str(dump), *args], registry)
    assert caught.value.code == 2
