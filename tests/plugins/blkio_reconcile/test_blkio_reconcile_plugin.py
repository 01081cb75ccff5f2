"""BlkIOReconcile on fake hosts: what it writes, at which level, and what it restores."""

import json
from dataclasses import replace

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import KubeQoS
from koord.plugin import Unavailable
from koordlet.plugin.kernel import NODE_LOCAL_STORAGE, LocalStorage
from koordlet.plugin.testing import FakeHost, PluginHarness, make_pod
from koordlet_plugins.blkio_reconcile import BlkIOReconcile
from koordlet_plugins.blkio_reconcile.limits import ANNOTATION

BE = KubeQoS.BEST_EFFORT
CSI = "/var/lib/kubelet/pods/batch/volumes/kubernetes.io~csi"
DISKS = {"/dev/vda": "253:0", "/dev/vdb": "253:16"}
STORAGE = LocalStorage(disk_number=DISKS, whole_number=DISKS)
COSTS = {
    "cost.qos": "253:0 enable=0 ctrl=auto rpct=0.00 rlat=250000 wpct=0.00 wlat=250000 min=1.00",
    "cost.model": "253:0 ctrl=auto model=linear rbps=1 rseqiops=1 rrandiops=1",
}
READ_BPS = "blkio/blkio.throttle.read_bps_device"


def block(name="/dev/vdb", type="device", **io):
    return {"name": name, "type": type, "ioCfg": io}


class Claims:
    """An API server that has claims."""

    available = True

    def __init__(self, **bound):
        self.bound = bound
        self.asked = []

    async def get(self, path, query=None):
        self.asked.append(path)
        name = path.rpartition("/")[2]
        if name not in self.bound:
            raise Unavailable(f"get {path}: wanted it, found 403 Forbidden")
        return {"spec": {"volumeName": self.bound[name]}}


class Bed:
    """A node with two disks and a best-effort pod of two containers."""

    def __init__(self, tmp_path, version, *blocks, storage=STORAGE, client=None, **more):
        self.host = FakeHost(tmp_path, version=version)
        self.pods = self.host.add_pod("batch", BE, containers=("batch-a", "batch-b"))
        self.groups = {"class": self.host.qos_group(BE), "pod": self.pods.group}
        self.groups |= self.pods.containers
        self.groups["root"] = self.host.root
        self.harness = PluginHarness(
            BlkIOReconcile(),
            pods=[self.pod(*blocks)],
            host=self.host,
            client=client,
            gates={"BlkIOReconcile"},
            **more,
        )
        self.set_storage(storage)
        self.slo()

    def set_storage(self, storage):
        self.harness.metrics.cache.put(NODE_LOCAL_STORAGE, storage)

    def pod(self, *blocks, text=None, labels=None, claims=None, phase="Running"):
        text = json.dumps({"blocks": blocks}) if text is None else text
        meta = make_pod(
            "batch",
            qos=BE,
            labels={"koordinator.sh/qosClass": "BE"} if labels is None else labels,
            annotations={ANNOTATION: text} if blocks or text is not None else {},
            containers=make_pod("x").pod.containers[:0],
        )
        metas = tuple(
            replace(make_pod("x").containers[0], name=name[-1], cgroup=group.path)
            for name, group in self.pods.containers.items()
        )
        spec = tuple(replace(make_pod("x").pod.containers[0], name=one.name) for one in metas)
        pod = replace(meta.pod, containers=spec, claims=claims or {}, phase=phase)
        return replace(meta, pod=pod, containers=metas)

    def slo(self, best_effort=(), root=(), **more):
        strategy = {
            "beClass": {"blkioQOS": {"enable": True, "blocks": list(best_effort)}},
            "cgroupRoot": {"blkioQOS": {"enable": True, "blocks": list(root)}},
        }
        spec = {"resourceQOSStrategy": strategy | more}
        self.harness.set_node_slo(merge_nodeslo({"spec": spec})[0])

    def v1(self, group):
        """The throttles that are set."""
        found = {
            name: self.groups[group].read(f"blkio/blkio.throttle.{name}_device")
            for name in ("read_bps", "write_bps", "read_iops", "write_iops")
        }
        return {name: text for name, text in found.items() if text}

    def v2(self, group):
        return self.groups[group].read("io.max")


async def test_a_pod_on_v1(tmp_path):
    """Its containers, too: mainline v1 does not limit what is below a cgroup."""
    bed = Bed(tmp_path, 1, block(readBPS=1048576, writeIOPS=512))
    async with bed.harness as harness:
        await harness.rounds(1)
        limits = {"read_bps": "253:16 1048576", "write_iops": "253:16 512"}
        assert [bed.v1(group) for group in ("pod", "batch-a", "batch-b")] == [limits] * 3
        assert bed.v1("class") == {}

        harness.set_pods(bed.pod(block(writeIOPS=256)))
        await harness.rounds(1)
        assert bed.v1("pod") == bed.v1("batch-b") == {"write_iops": "253:16 256"}

        harness.set_pods(bed.pod())
        await harness.rounds(1)
        assert [bed.v1(group) for group in ("pod", "batch-a", "batch-b")] == [{}] * 3
        assert harness.claims() == []


async def test_a_pod_on_v2(tmp_path):
    """One file for all four; a removed block and a removed annotation take the limit away."""
    bed = Bed(tmp_path, 2, block(readBPS=1048576, writeIOPS=512), block("/dev/vda", writeBPS=7))
    async with bed.harness as harness:
        await harness.rounds(1)
        assert sorted(bed.v2("pod").splitlines()) == [
            "253:0 rbps=max wbps=7 riops=max wiops=max",
            "253:16 rbps=1048576 wbps=max riops=max wiops=512",
        ]
        assert bed.v2("batch-a") == bed.v2("class") == ""
        harness.set_pods(bed.pod(block("/dev/vda", writeBPS=7)))
        await harness.rounds(1)
        assert bed.v2("pod") == "253:0 rbps=max wbps=7 riops=max wiops=max"
        harness.set_pods(bed.pod(text=""))
        await harness.rounds(1)
        assert bed.v2("pod") == ""


@pytest.mark.parametrize("version", [1, 2])
async def test_the_class_of_best_effort_pods(tmp_path, version):
    """On v1 each of its containers, with the tighter of the pod's limit and that of the class."""
    bed = Bed(tmp_path, version, block(readBPS=500, writeBPS=9000))
    bed.slo([block(readBPS=1000, writeBPS=1000)])
    async with bed.harness as harness:
        await harness.rounds(1)
        if version == 2:
            assert bed.v2("class") == "253:16 rbps=1000 wbps=1000 riops=max wiops=max"
            assert bed.v2("pod") == "253:16 rbps=500 wbps=9000 riops=max wiops=max"
        else:
            assert bed.v1("class") == {"read_bps": "253:16 1000", "write_bps": "253:16 1000"}
            assert bed.v1("pod") == {"read_bps": "253:16 500", "write_bps": "253:16 9000"}
            assert bed.v1("batch-a") == {"read_bps": "253:16 500", "write_bps": "253:16 1000"}
        bed.slo([])
        await harness.rounds(1)
        assert (bed.v2("class") if version == 2 else bed.v1("class")) in ("", {})


@pytest.mark.parametrize("version", [1, 2])
async def test_everything_is_restored_when_it_ends(tmp_path, version):
    """Also what another agent had set."""
    bed = Bed(tmp_path, version, block(readBPS=500))
    file = READ_BPS if version == 1 else "io.max"
    before = "253:16 77" if version == 1 else "253:16 rbps=77 wbps=max riops=max wiops=max"
    bed.groups["pod"].write(file, f"{before}\n")
    async with bed.harness as harness:
        await harness.rounds(1)
        assert "500" in bed.groups["pod"].read(file)
    assert bed.groups["pod"].read(file) == before


@pytest.mark.parametrize(
    ("version", "file", "name"),
    [
        (1, "blkio/blkio.cost.weight", "blkio_cost_weight"),
        (1, "blkio/blkio.bfq.weight_device", "bfq_device_weight"),
        (2, "io.weight", "io_device_weight"),
        (2, "io.bfq.weight", "bfq_device_weight"),
    ],
)
async def test_weights_where_the_kernel_has_them(tmp_path, version, file, name):
    """The first file of those that there are; a group's own weight stays."""
    bed = Bed(tmp_path, version, block(ioWeightPercent=40))
    for group in (bed.host.qos_group(KubeQoS.GUARANTEED), *bed.groups.values()):
        if version == 2:
            path = bed.host.paths.cgroup / group.path / "io.weight"
            path.unlink(missing_ok=True)
        group.write(file, "default 100\n" if "cost" not in file else "")
    async with bed.harness as harness:
        await harness.rounds(1)
        assert [claim["resource"] for claim in harness.claims()] == [name]
        assert "253:16 40" in bed.groups["pod"].read(file).splitlines()
        harness.set_pods(bed.pod())
        await harness.rounds(1)
        assert bed.groups["pod"].read(file) in ("default 100", "")


async def test_a_missing_file_costs_one_setting(tmp_path):
    """The throttle is there; explain, log, health and metric name the file that is not."""
    bed = Bed(tmp_path, 2, block(readBPS=500, readLatency=1000))
    bed.slo(root=[block()])
    async with bed.harness as harness:
        await harness.rounds(3)
        assert bed.v2("pod") == "253:16 rbps=500 wbps=max riops=max wiops=max"
        states = {claim["resource"]: claim["state"] for claim in harness.claims()}
        assert states["io_max"] == "in force"
        assert states["io_latency"] == states["blkio_cost_qos"] == "unsupported"
        assert "this kernel lacks blkio_cost_qos, io_latency" in harness.degraded
        assert harness.metric("missing_files") == 2
        [missing] = harness.log.named("blkio.files_missing")
        assert "CONFIG_BLK_CGROUP_IOLATENCY" in missing["needs"]["io_latency"]
        harness.set_pods(bed.pod())
        bed.slo()
        await harness.rounds(1)
        assert (harness.degraded, harness.metric("missing_files")) == ("", 0)


@pytest.mark.parametrize("version", [1, 2])
async def test_cost_settings_of_the_root(tmp_path, version):
    """Switched off again where they were off; a line that the kernel keeps is no setting."""
    bed = Bed(tmp_path, version)
    prefix = "blkio/blkio." if version == 1 else "io."
    for name, text in COSTS.items():
        bed.groups["root"].write(f"{prefix}{name}", f"{text}\n")
    bed.slo(root=[block(readLatency=1000, readLatencyPercent=90)])
    async with bed.harness as harness:
        await harness.rounds(1)
        assert (
            "253:16 enable=1 ctrl=user rpct=90.00 rlat=1000 wpct=95.00 wlat=3000"
            in bed.groups["root"].read(f"{prefix}cost.qos").splitlines()
        )
        assert bed.groups["root"].read(f"{prefix}cost.model") == COSTS["cost.model"]
        bed.slo()
        await harness.rounds(1)
        assert bed.groups["root"].read(f"{prefix}cost.qos") == COSTS["cost.qos"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "pod default/batch: koordinator.sh/blkioQOS: wanted valid JSON"),
        (json.dumps({"blocks": [block(readIOPS=2**32)]}), "blocks[0].ioCfg.readIOPS: wanted 0 to"),
        (json.dumps({"blocks": [block("../../etc")]}), "block ../../etc: name: wanted a block"),
        (json.dumps({"blocks": [block(), block("/dev/vdb1")]}), "no other block names"),
    ],
)
async def test_the_last_good_limit_stays(tmp_path, text, message):
    """A rejection names pod and field, once."""
    storage = replace(STORAGE, partition_disk={"/dev/vdb1": "/dev/vdb"})
    bed = Bed(tmp_path, 2, block(readBPS=500), storage=storage)
    async with bed.harness as harness:
        await harness.rounds(1)
        harness.set_pods(bed.pod(text=text))
        await harness.rounds(15)
        assert bed.v2("pod") == "253:16 rbps=500 wbps=max riops=max wiops=max"
        assert harness.metric("rejected_total", object="pod") == 1
        [error] = [event["error"] for event in harness.log.named("setting.rejected")]
        assert message in error
        assert "default/batch" in error
        harness.set_pods(bed.pod(block(readBPS=600)))
        await harness.rounds(1)
        assert bed.v2("pod") == "253:16 rbps=600 wbps=max riops=max wiops=max"


async def test_one_unknown_device_costs_one_block(tmp_path):
    """And a volume that is mounted later gets its limit then, without a rejection."""
    bed = Bed(tmp_path, 2)
    blocks = (block("data", "podvolume", writeBPS=5), block(readBPS=500))
    meta = bed.pod(*blocks, claims={"data": "data-0"})
    async with bed.harness as harness:
        harness.set_pods(meta)
        await harness.rounds(2)
        assert bed.v2("pod") == "253:16 rbps=500 wbps=max riops=max wiops=max"
        bed.set_storage(replace(STORAGE, mount_source={f"{CSI}/pvc-1/mount": "/dev/vda"}))
        await harness.rounds(1)
        assert "253:0 rbps=max wbps=5 riops=max wiops=max" in bed.v2("pod").splitlines()
        assert not harness.metric("rejected_total", object="pod")


async def test_claims_that_only_the_api_server_tells_apart(tmp_path):
    """Asked once for each claim; a refusal is shown, and asked again after a while."""
    mounts = {f"{CSI}/pvc-1/mount": "/dev/vda", f"{CSI}/pvc-2/mount": "/dev/vdb"}
    client = Claims()
    bed = Bed(tmp_path, 2, storage=replace(STORAGE, mount_source=mounts), client=client)
    blocks = (block("data", "podvolume", writeBPS=5),)
    async with bed.harness as harness:
        harness.set_pods(bed.pod(*blocks, claims={"data": "data-0", "logs": "logs-0"}))
        await harness.rounds(3)
        assert bed.v2("pod") == ""
        assert "403 Forbidden" in harness.degraded
        assert client.asked == ["/api/v1/namespaces/default/persistentvolumeclaims/data-0"]
        client.bound["data-0"] = "pvc-2"
        await harness.rounds(31)
        assert bed.v2("pod") == "253:16 rbps=max wbps=5 riops=max wiops=max"
        assert (harness.degraded, len(client.asked)) == ("", 2)


@pytest.mark.parametrize("change", [{"labels": {}}, {"phase": "Pending"}])
async def test_pods_that_are_left_alone(tmp_path, change):
    """As upstream: without a QoS label, or not yet running."""
    bed = Bed(tmp_path, 2)
    async with bed.harness as harness:
        harness.set_pods(bed.pod(block(readBPS=500), **change))
        await harness.rounds(1)
        assert harness.claims() == []


async def test_settings_of_the_node_that_cannot_be_used(tmp_path):
    """The last good limit stays; other classes have none."""
    bed = Bed(tmp_path, 2)
    bed.slo([block(readBPS=500)])
    async with bed.harness as harness:
        await harness.rounds(1)
        bed.slo(
            [block("data", "podvolume", readBPS=1)],
            lsClass={"blkioQOS": {"enable": True, "blocks": [block(readBPS=1)]}},
        )
        await harness.rounds(2)
        assert bed.v2("class") == "253:16 rbps=500 wbps=max riops=max wiops=max"
        errors = [event["error"] for event in harness.log.named("setting.rejected")]
        assert len(errors) == 2
        assert any("only pods have volumes" in error for error in errors)
        assert any("lsClass.blkioQOS.blocks: wanted none" in error for error in errors)


async def test_dry_run_writes_nothing(tmp_path):
    bed = Bed(tmp_path, 2, block(readBPS=500), dry_run=True)
    async with bed.harness as harness:
        await harness.rounds(1)
        assert bed.v2("pod") == ""
        assert [claim["state"] for claim in harness.claims()] == ["would"]


async def test_a_quiet_round_costs_little(tmp_path):
    """150 pods with limits, a thousand mounts: a round each second is within 0.002 core."""
    mounts = {f"/var/lib/kubelet/pods/{n}/volumes/x": "/dev/vda" for n in range(1000)}
    bed = Bed(tmp_path, 2, storage=replace(STORAGE, mount_source=mounts))
    annotation = {ANNOTATION: json.dumps({"blocks": [block(readBPS=500)]})}
    pods = [
        make_pod(f"p{n}", annotations=annotation, labels={"koordinator.sh/qosClass": "LS"})
        for n in range(150)
    ]
    for meta in pods:
        bed.host.add_pod(meta.uid, meta.kube_qos, containers=())
    async with bed.harness as harness:
        harness.set_pods(*pods)
        await harness.rounds(2)
        assert len(harness.claims()) == 150
        before = harness.cost
        for n in range(10):  # each second another container is mounted
            bed.set_storage(replace(STORAGE, mount_source=mounts | {f"/run/{n}": "overlay"}))
            await harness.rounds(1)
        spent = harness.cost.cpu_seconds - before.cpu_seconds
        assert spent / 10 < 0.002, spent
