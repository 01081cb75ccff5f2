"""TerwayQoS: the files of the agent terway-qos, for the NodeSLO and pods, and their end."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import QOS_LABEL, KubeQoS
from koord.api.qosstrategy import ANNOTATION
from koordlet.host import resources
from koordlet.host.terway_files import MAX_BYTES, is_terway_content, parse_terway_file
from koordlet.plugin.network import NODE_FILE, PODS_FILE
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.terway_qos import TerwayQoS

DIRECTORY = "root/var/lib/terway/qos"
RATES = {
    "hw_tx_bps_max": 12500000,
    "hw_rx_bps_max": 12500000,
    "offline_l1_tx_bps_min": 6250000,
    "offline_l1_tx_bps_max": 12500000,
    "offline_l1_rx_bps_min": 0,
    "offline_l1_rx_bps_max": 1250000,
    "offline_l2_tx_bps_min": 0,
    "offline_l2_tx_bps_max": 2500000,
    "offline_l2_rx_bps_min": 0,
    "offline_l2_rx_bps_max": 0,
}


def slo(policy="terway-qos", total="100M", **be):
    ls = {"egressRequest": 50, "egressLimit": "100M", "ingressLimit": "10M"}
    return {
        "systemStrategy": {"totalNetworkBandwidth": total},
        "resourceQOSStrategy": {
            "policies": {"netQOSPolicy": policy},
            "lsClass": {"networkQOS": {"enable": True, **ls}},
            "beClass": {"networkQOS": {"enable": True, "egressLimit": "20M", **be}},
        },
    }


class Bench:
    def __init__(self, root, version=2, **options):
        self.host = FakeHost(root, version)
        self.directory = root / DIRECTORY
        self.directory.mkdir(parents=True)
        self.harness = PluginHarness(TerwayQoS(), host=self.host, **options)
        self.slo(**slo())

    def slo(self, **spec):
        self.harness.set_node_slo(merge_nodeslo({"spec": spec})[0])

    @property
    def there(self):
        return sorted(path.name for path in self.directory.iterdir())

    def rates(self):
        lines = (self.directory / NODE_FILE).read_text().splitlines()
        return {key: int(value) for key, value in map(str.split, lines)}

    def pods(self):
        return json.loads((self.directory / PODS_FILE).read_text())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def pod(name, label="", qos=KubeQoS.BURSTABLE, text=None, **limits):
    annotation = text if text is not None else json.dumps(limits)
    meta = make_pod(
        name,
        labels={QOS_LABEL: label} if label else {},
        annotations={ANNOTATION: annotation} if limits or text is not None else {},
    )
    return replace(meta, pod=replace(meta.pod, qos=qos))


async def test_the_files_have_rates_and_pods_and_are_gone_in_the_end(bench):
    """Rates are bytes/s, also of percentages; a pod needs no limit in both directions."""
    bench.harness.set_pods(
        pod("web", "LSR", ingressLimit="1000", egressLimit="2000"),
        pod("batch", "BE", egressLimit="8M"),
        pod("plain", qos=KubeQoS.BEST_EFFORT),
        pod("agent", "SYSTEM"),
    )
    async with bench.harness:
        await bench.harness.rounds(2)

        assert list(bench.rates().items()) == list(RATES.items())
        found = {each["podName"]: each for each in bench.pods().values()}
        assert {name: each["prio"] for name, each in found.items()} == {
            "web": 1,
            "batch": 2,
            "plain": 2,
            "agent": 0,
        }
        assert found["web"]["qosConfig"] == {"ingressBandwidth": 125, "egressBandwidth": 250}
        assert found["batch"]["qosConfig"] == {"ingressBandwidth": 0, "egressBandwidth": 1000000}
        assert list(bench.pods()) == sorted(each["podUID"] for each in found.values())
        assert {each["state"] for each in bench.harness.claims()} == {"in force"}
        for name in bench.there:
            assert (bench.directory / name).stat().st_mode & 0o777 == 0o644
    assert bench.there == []


@pytest.mark.parametrize(("version", "above"), [(1, "/net_cls"), (2, "")])
async def test_terway_finds_the_cgroup_of_a_pod(tmp_path, version, above):
    """In net_cls, where there is one."""
    bench = Bench(tmp_path, version)
    meta = pod("web", "LS")
    bench.harness.set_pods(meta)
    if version == 1:
        bench.host.write("cgroup/net_cls/kubepods/net_cls.classid", "0\n")
    async with bench.harness:
        await bench.harness.rounds(1)

        [entry] = bench.pods().values()
        assert entry["cgroupDir"] == f"/sys/fs/cgroup{above}/{meta.cgroup}"


async def test_another_policy_removes_them_and_what_was_there_returns(bench):
    """Also what another agent had left: that is restored."""
    before = "hw_tx_bps_max 1\n"
    (bench.directory / NODE_FILE).write_text(before)
    async with bench.harness:
        await bench.harness.rounds(1)
        assert bench.rates() == RATES

        bench.slo(**slo(policy="tc"))
        await bench.harness.rounds(1)
        assert bench.there == [NODE_FILE]
        assert (bench.directory / NODE_FILE).read_text() == before

        bench.slo(**slo())
        await bench.harness.rounds(1)
        assert bench.there == [NODE_FILE, PODS_FILE]


@pytest.mark.parametrize(
    "spec",
    [
        slo(total="-1"),
        slo(egressRequest="101M"),
        slo(egressLimit="101M"),
        slo(ingressLimit="800M"),
        slo(egressLimit=101),
        slo(ingressLimit="fast"),
    ],
    ids=[
        "negative",
        "request above the link",
        "limit above the link",
        "limit of eight times the link",
        "over 100 percent",
        "no quantity",
    ],
)
async def test_rates_that_cannot_be_used_leave_the_last_good_ones(bench, spec):
    bench.slo(**spec)
    async with bench.harness:
        await bench.harness.rounds(1)
        assert bench.there == []  # there were no good ones

        bench.slo(**slo())
        await bench.harness.rounds(1)
        bench.slo(**spec)
        await bench.harness.rounds(1)
        assert bench.rates() == RATES


async def test_a_hostile_pod_is_text_in_one_file_and_never_a_path(bench):
    """Its names stay inside of their strings; its annotation counts for nobody else."""
    nasty = pod("evil", "BE", text='{"egressLimit":"-1"}')
    name = '../../etc/"},"x":{\n'
    nasty = replace(nasty, pod=replace(nasty.pod, name=name, namespace="../.."))
    bench.harness.set_pods(nasty, pod("web", "LS", egressLimit="8k"))
    async with bench.harness:
        await bench.harness.rounds(1)

        assert bench.there == [NODE_FILE, PODS_FILE]
        limits = {each["podName"]: each["qosConfig"] for each in bench.pods().values()}
        assert limits[name] == {"ingressBandwidth": 0, "egressBandwidth": 0}
        assert limits["web"] == {"ingressBandwidth": 0, "egressBandwidth": 1000}


async def test_a_link_in_place_of_a_file_is_not_followed(bench, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (bench.directory / PODS_FILE).symlink_to(victim)
    async with bench.harness:
        await bench.harness.rounds(2)

        states = {each["target"]: each["state"] for each in bench.harness.claims()}
        assert states[f"terway {NODE_FILE}"] == "in force"
        assert states[f"terway {PODS_FILE}"] != "in force"
    assert victim.read_text() == "mine\n"
    assert (bench.directory / PODS_FILE).is_symlink()


@pytest.mark.parametrize("lacks", ["open to others", "missing"])
async def test_a_directory_that_cannot_be_trusted_or_is_missing_gets_no_file(bench, lacks):
    if lacks == "missing":
        bench.directory.rmdir()
    else:
        bench.directory.chmod(0o777)
    async with bench.harness:
        await bench.harness.rounds(2)

        assert "in force" not in {each["state"] for each in bench.harness.claims()}
    assert not bench.directory.exists() or bench.there == []


async def test_dry_run_writes_no_file(tmp_path):
    bench = Bench(tmp_path, dry_run=True)
    async with bench.harness:
        await bench.harness.rounds(1)

        assert len(bench.harness.claims()) == 2
        assert bench.there == []


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_a_file_has_is_read_exactly_or_refused(data):
    """What is accepted could be restored byte for byte."""
    try:
        text = parse_terway_file(data + b"\n")
    except ValueError:
        return
    assert text == "absent" or is_terway_content(text)
    assert text.encode() == data


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "1", '"x"', "a" * (MAX_BYTES + 1), "x: 1\n", "../x 1\n\n"]
)
def test_other_texts_are_not_restored(text):
    """A journal may be hostile."""
    assert not resources.TERWAY_FILE.files[1].may_restore(text)
