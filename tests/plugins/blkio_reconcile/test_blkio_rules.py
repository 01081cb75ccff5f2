"""The blocks of annotations, the devices behind their names, and the kernel's values for them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.qosstrategy import Block, BlockType, IOConfig
from koord.plugin import InvalidObject
from koordlet.plugin import resources
from koordlet.plugin.kernel import LocalStorage
from koordlet.plugin.testing import make_pod
from koordlet_plugins.blkio_reconcile.limits import (
    ANNOTATION,
    MAX_BLOCKS,
    DeviceLookup,
    ambiguous_claims,
    blocks_of_pod,
    costs,
    latencies,
    mounts_by_pod,
    resolve,
    throttles,
    tighter,
    weights,
)

DEVICE, GROUP, VOLUME = BlockType.DEVICE, BlockType.VOLUME_GROUP, BlockType.POD_VOLUME
KUBELET = "/var/lib/kubelet/pods/web/volumes/kubernetes.io~csi"
STORAGE = LocalStorage(
    disk_number={"/dev/vda": "253:0", "/dev/vdb": "253:16"},
    partition_disk={"/dev/vdb1": "/dev/vdb"},
    vg_disk={"yoda": "/dev/vdb"},
    lv_vg={"/dev/mapper/yoda-a": "yoda", "/dev/mapper/wide-a": "wide"},
    mount_source={
        f"{KUBELET}/pvc-1/mount": "/dev/mapper/yoda-a",
        f"{KUBELET}/scratch/mount": "/dev/vda",
        f"{KUBELET}/pvc-2/mount/inner": "/dev/vda",
        "/elsewhere": "/dev/vda",
    },
    whole_number={
        "/dev/vda": "253:0",
        "/dev/vdb": "253:16",
        "/dev/loop0": "7:0",
        "/dev/mapper/wide-a": "252:1",
    },
)
PLACES = DeviceLookup(STORAGE, mounts_by_pod(STORAGE), {})
POD = replace(make_pod("web").pod, claims={"data": "data-web-0", "scratch": ""})


def pod(annotation):
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return make_pod("web", annotations={ANNOTATION: text}).pod


def block(name="/dev/vdb", type="device", **io):
    return {"name": name, "type": type, "ioCfg": io}


@pytest.mark.parametrize("annotation", ["", "{}", "null", '{"blocks":[]}', '{"blocks":null}'])
def test_no_blocks(annotation):
    assert blocks_of_pod(pod(annotation)) == ()
    assert blocks_of_pod(make_pod("web").pod) == ()


def test_the_case_of_keys_does_not_matter():
    """As in Go."""
    text = (
        '{"Blocks":[{"NAME":"data","type":"podvolume","iocfg":{"readiops":1024,"WriteIOPS":512}}]}'
    )

    assert blocks_of_pod(pod(text)) == (
        Block(name="data", type=VOLUME, io=IOConfig(read_iops=1024, write_iops=512)),
    )


def test_blocks_of_one_name_are_one():
    """By type and name, not by their place in the list; later fields come first."""
    blocks = blocks_of_pod(
        pod(
            {
                "blocks": [
                    block(readBPS=1, writeBPS=2),
                    block("yoda", "volumegroup", readBPS=9),
                    block(writeBPS=3),
                ]
            }
        )
    )

    assert blocks == (
        Block(name="/dev/vdb", type=DEVICE, io=IOConfig(read_bps=1, write_bps=3)),
        Block(name="yoda", type=GROUP, io=IOConfig(read_bps=9)),
    )


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("{", r"blkioQOS: wanted valid JSON"),
        ("[]", r"blkioQOS: wanted an object"),
        ({"blocks": {}}, r"blocks: wanted a list"),
        ({"blocks": [block(readIOPS=-1)]}, r"blocks\[0\].ioCfg.readIOPS: wanted 0 or more"),
        (
            {"blocks": [block(readIOPS=2**32)]},
            r"blocks\[0\].ioCfg.readIOPS: wanted 0 to 4294967294",
        ),
        ({"blocks": [block(readBPS="1Mi")]}, r"blocks\[0\].ioCfg.readBPS: wanted"),
        ({"blocks": [block(readBPS=2**63)]}, r"blocks\[0\].ioCfg.readBPS: wanted"),
        ({"blocks": [block(ioWeightPercent=0)]}, r"blocks\[0\].ioCfg.ioWeightPercent: wanted"),
        ({"blocks": [block(readLatency=-1)]}, r"blocks\[0\].ioCfg.readLatency: wanted"),
        ({"blocks": [block(), block("x", "tape")]}, r"blocks\[1\].type: wanted one of device,"),
        ({"blocks": [block("")]}, r"blocks\[0\].name: wanted 1 to 253 printable"),
        ({"blocks": [block("a\n8:0 1")]}, r"blocks\[0\].name: wanted 1 to 253 printable"),
        ({"blocks": [block("x" * 254)]}, r"blocks\[0\].name: wanted 1 to 253 printable"),
        ({"blocks": [block(f"d{n}") for n in range(MAX_BLOCKS + 1)]}, r"wanted 64 blocks at most"),
    ],
)
def test_what_is_refused(annotation, message):
    """Whole, with the pod and the field by name."""
    with pytest.raises(InvalidObject, match=f"pod default/web: koordinator.sh/.*{message}"):
        blocks_of_pod(pod(annotation))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["blocks", "name", "type", "ioCfg", "readIOPS", "writeBPS", "Name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text() | JSON.map(json.dumps) | JSON.map(lambda value: json.dumps({"blocks": [value]})))
def test_any_annotation_is_blocks_or_refused(text):
    """And what passes can be written: no claim fails for its numbers."""
    try:
        blocks = blocks_of_pod(pod(text))
    except InvalidObject:
        return
    devices = {f"8:{index}": each.io for index, each in enumerate(blocks)}
    for limit in (*throttles(devices, 1), *throttles(devices, 2), *latencies(devices)):
        file = limit.resource.files[min(limit.resource.files)]
        assert file.validate(file.text.of(limit.value))


@pytest.mark.parametrize(
    ("name", "type", "number"),
    [
        ("/dev/vdb", DEVICE, "253:16"),
        ("/dev/vdb1", DEVICE, "253:16"),
        ("/dev/mapper/yoda-a", DEVICE, "253:16"),
        ("/dev/mapper/wide-a", DEVICE, "252:1"),
        ("/dev/loop0", DEVICE, "7:0"),
        ("yoda", GROUP, "253:16"),
        ("data", VOLUME, "253:16"),
        ("scratch", VOLUME, "253:0"),
    ],
)
def test_devices_of_names(name, type, number):
    """A disk where there is one below, else the device itself."""
    assert PLACES.number_of(Block(name=name, type=type), POD, "here") == number


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("/dev/vdz", DEVICE),
        ("253:16", DEVICE),
        ("/dev/../dev/vdb", DEVICE),
        ("vdb", DEVICE),
        ("wide", GROUP),
        ("/dev/vdb", GROUP),
        ("pvc-1", VOLUME),
        ("../web/volumes", VOLUME),
        ("/elsewhere", VOLUME),
    ],
)
def test_names_that_lead_nowhere(name, type):
    """They are only compared with what the kernel lists."""
    with pytest.raises(InvalidObject, match=r"^here: wanted .* found"):
        PLACES.number_of(Block(name=name, type=type), POD, "here")


def test_a_class_has_no_volumes():
    with pytest.raises(InvalidObject, match="only pods have volumes"):
        PLACES.number_of(Block(name="data", type=VOLUME), None, "here")


def test_claims_are_asked_for_only_where_mounts_do_not_tell():
    """One claim and one mount belong together; of two it is the API server that knows."""
    both = replace(POD, claims={"data": "data-0", "logs": "logs-0", "scratch": ""})
    blocks = (Block(name="data", type=VOLUME), Block(name="/dev/vdb", type=DEVICE))
    mounts = PLACES.mounts["web"]

    assert not list(ambiguous_claims(POD, blocks, mounts))
    [ambiguous] = ambiguous_claims(both, blocks, mounts)
    assert ambiguous == (("web", "data-0"), "default")
    with pytest.raises(InvalidObject):
        PLACES.number_of(blocks[0], both, "here")
    known = PLACES._replace(volumes={("web", "data-0"): "pvc-1"})
    assert known.number_of(blocks[0], both, "here") == "253:16"


def test_two_names_for_one_device():
    """The first one counts; the others are named."""
    blocks = [
        Block(name="/dev/vdb", type=DEVICE, io=IOConfig(read_bps=1)),
        Block(name="yoda", type=GROUP, io=IOConfig(read_bps=2)),
        Block(name="/dev/vda", type=DEVICE, io=IOConfig(read_bps=3)),
    ]

    found = resolve(blocks, PLACES, POD, "blocks")

    assert found.devices == {"253:16": IOConfig(read_bps=1), "253:0": IOConfig(read_bps=3)}
    assert "blocks, block yoda: name: wanted a device that no other block names" in str(
        found.problem
    )


def texts(limits, version):
    """What the kernel is given, by file."""
    files = ((limit, limit.resource.files[version]) for limit in limits)
    return {file.name: file.text.of(limit.value) for limit, file in files}


ALL = IOConfig(
    read_iops=1024, write_iops=1024, read_bps=1048576, write_bps=1048576, io_weight_percent=40
)


def test_the_best_effort_class_of_the_spec_on_v1():
    devices = {"253:16": ALL}
    limits = (*throttles(devices, 1), *weights(devices, resources.BLKIO_COST_WEIGHT))

    assert texts(limits, 1) == {
        "blkio.throttle.read_iops_device": "253:16 1024",
        "blkio.throttle.read_bps_device": "253:16 1048576",
        "blkio.throttle.write_iops_device": "253:16 1024",
        "blkio.throttle.write_bps_device": "253:16 1048576",
        "blkio.cost.weight": "253:16 40",
    }


def test_the_same_on_v2():
    devices = {"253:16": ALL, "253:0": IOConfig(read_latency=900, write_latency=500)}
    limits = (
        *throttles(devices, 2),
        *weights(devices, resources.IO_DEVICE_WEIGHT),
        *latencies(devices),
    )

    assert texts(limits, 2) == {
        "io.max": "253:16 rbps=1048576 wbps=1048576 riops=1024 wiops=1024",
        "io.weight": "253:16 40",
        "io.latency": "253:0 target=500",
    }


def test_a_field_that_is_not_set_or_zero_is_no_limit():
    devices = {"253:16": IOConfig(read_iops=1024, write_iops=0)}

    assert texts(throttles(devices, 1), 1) == {"blkio.throttle.read_iops_device": "253:16 1024"}
    assert not list(throttles({"253:16": IOConfig()}, 2))


@pytest.mark.parametrize("version", [1, 2])
def test_the_root_of_the_spec(version):
    """Percentages as the kernel shows them, so that they are written once."""
    io = IOConfig(
        read_latency=1000,
        write_latency=1000,
        read_latency_percent=90,
        write_latency_percent=90,
        enable_user_model=True,
        model_read_bps=3324911720,
        model_read_seq_iops=168274,
        model_read_rand_iops=352545,
        model_write_bps=2765819289,
        model_write_seq_iops=367565,
        model_write_rand_iops=339390,
    )
    prefix = {1: "blkio", 2: "io"}[version]

    assert texts(costs({"253:16": io}), version) == {
        f"{prefix}.cost.qos": "253:16 enable=1 ctrl=user rpct=90.00 rlat=1000 wpct=90.00 wlat=1000",
        f"{prefix}.cost.model": "253:16 ctrl=user rbps=3324911720 rseqiops=168274 "
        "rrandiops=352545 wbps=2765819289 wseqiops=367565 wrandiops=339390",
    }


def test_defaults_of_the_root():
    assert texts(costs({"253:16": IOConfig()}), 2) == {
        "io.cost.qos": "253:16 enable=1 ctrl=user rpct=95.00 rlat=3000 wpct=95.00 wlat=3000"
    }


def test_a_model_needs_all_its_numbers():
    """Upstream writes zeros for what is missing, which the kernel refuses."""
    half = Block(
        name="/dev/vdb", type=DEVICE, io=IOConfig(enable_user_model=True, model_read_bps=1)
    )

    found = resolve([half], PLACES, None, "root")

    assert (found.devices, "all six model fields" in str(found.problem)) == ({}, True)


def test_the_tighter_of_two():
    one = {"8:0": IOConfig(read_bps=5, write_bps=9, io_weight_percent=3), "8:1": IOConfig()}
    other = {"8:0": IOConfig(read_bps=7, write_bps=0, read_iops=2)}

    assert tighter(one, other)["8:0"] == IOConfig(read_bps=5, write_bps=9, read_iops=2)
