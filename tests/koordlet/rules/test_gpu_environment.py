"""The variables and mounts of containers with GPUs. Pods, and so their annotations, are hostile."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import Container, Pod
from koord.util.errors import InvalidObject
from koordlet.rules.allocated_devices import BindMount, GpuEnvironment, gpu_environment
from koordlet.rules.devices import Gpu, GpuSet, NodeDevices, XpuSet, node_devices

GIB = 1 << 30
GPUS = GpuSet(
    "550", tuple(Gpu(uuid=f"G{n}", minor=n, model="T4", memory=32 * GIB) for n in range(2))
)
NODE = node_devices(GPUS, XpuSet(), ())
LIBRARY = "/usr/local/vgpu/libvgpu.so"
HALF = {"gpu-memory-ratio": "50", "gpu-core": "50", "gpu-memory": "16Gi"}
LIMITED = {
    "NVIDIA_VISIBLE_DEVICES": "1",
    "CUDA_DEVICE_MEMORY_LIMIT": "17179869184",
    "CUDA_DEVICE_SM_LIMIT": "50",
    "LD_PRELOAD": LIBRARY,
}
MOUNTS = (BindMount(LIBRARY, LIBRARY), BindMount("/tmp/vgpulock", "/tmp/vgpulock"))


def environment(
    allocated: Any,
    *,
    provider: str = "HAMi-core",
    uid: str = "ab-1",
    container: str = "main",
    monitored: bool = False,
    node: NodeDevices = NODE,
    requests: dict[str, str] | None = None,
) -> GpuEnvironment:
    text = allocated if isinstance(allocated, str) else json.dumps(allocated)
    pod = Pod(
        "ml",
        "train",
        uid,
        labels={"koordinator.sh/gpu-isolation-provider": provider},
        annotations={"scheduling.koordinator.sh/device-allocated": text},
        containers=(Container("main", requests=requests or {}),),
    )
    return gpu_environment(pod, container, node, LIBRARY, monitored=monitored)


def gpu(minor: int, resources: dict[str, Any] | None = None) -> dict[str, Any]:
    named = {f"koordinator.sh/{name}": value for name, value in (resources or {}).items()}
    return {"minor": minor, "resources": named}


@pytest.mark.parametrize(
    ("allocated", "provider", "env"),
    [  # the specification's examples, and the edges of its rules
        ({"gpu": [gpu(0), gpu(1)]}, "", {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
        ({"gpu": [gpu(1), gpu(0)]}, "other", {"NVIDIA_VISIBLE_DEVICES": "1,0"}),
        ({"fpga": [gpu(0)]}, "HAMi-core", {}),
        ({"gpu": []}, "HAMi-core", {}),
        ({}, "HAMi-core", {}),
        ({"gpu": [gpu(1, HALF)]}, "HAMi-core", LIMITED),
        ({"gpu": [gpu(1, HALF)]}, "", {"NVIDIA_VISIBLE_DEVICES": "1"}),
        (
            {"gpu": [gpu(1, HALF | {"gpu-memory-ratio": "100"})]},
            "HAMi-core",
            {"NVIDIA_VISIBLE_DEVICES": "1"},
        ),
        (  # the limits are those of the first
            {"gpu": [gpu(1, HALF), gpu(0, {"gpu-memory-ratio": "9"})]},
            "HAMi-core",
            LIMITED | {"NVIDIA_VISIBLE_DEVICES": "1,0"},
        ),
        (
            {"gpu": [gpu(1, {"gpu-memory-ratio": "50", "gpu-memory": "1Gi"})]},
            "HAMi-core",
            {
                "NVIDIA_VISIBLE_DEVICES": "1",
                "CUDA_DEVICE_MEMORY_LIMIT": str(GIB),
                "LD_PRELOAD": LIBRARY,
            },
        ),
    ],
)
def test_the_variables_of_a_container(allocated: Any, provider: str, env: dict[str, str]) -> None:
    found = environment(allocated, provider=provider)

    assert found.env == env
    assert found.mounts == (MOUNTS if "LD_PRELOAD" in env else ())
    assert found.directory == ""


def test_a_pod_without_the_annotation_gets_nothing() -> None:
    pod = Pod("ml", "train", "u")
    assert gpu_environment(pod, "main", NODE, LIBRARY, monitored=True) == GpuEnvironment()


def test_the_monitor_has_a_directory_of_each_container() -> None:
    found = environment({"gpu": [gpu(1, HALF)]}, monitored=True)

    directory = "/usr/local/vgpu/containers/ab-1_main"
    cache = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/ab-1_main.cache"}
    assert found.env == LIMITED | cache
    assert found.mounts == (*MOUNTS, BindMount(directory, "/usr/local/vgpu"))
    assert found.directory == directory


@pytest.mark.parametrize(
    "resources",
    [
        {},  # no ratio
        {"gpu-memory-ratio": "50"},  # no memory
        HALF | {"gpu-memory-ratio": "0"},
        HALF | {"gpu-memory-ratio": "-5"},
        HALF | {"gpu-memory": "0"},
        HALF | {"gpu-memory": "-1Gi"},
        HALF | {"gpu-memory": "33Gi"},  # the GPU has less
        HALF | {"gpu-core": "0"},
        HALF | {"gpu-core": "101"},
    ],
)
def test_limits_that_no_gpu_has_are_refused(resources: dict[str, str]) -> None:
    with pytest.raises(InvalidObject, match="wanted"):
        environment({"gpu": [gpu(1, resources)]})


@pytest.mark.parametrize("allocated", ["{", "[]", {"gpu": [gpu(2)]}, {"gpu": 3}])
def test_annotations_that_are_wrong_are_refused(allocated: Any) -> None:
    with pytest.raises(InvalidObject, match="wanted"):
        environment(allocated)


def test_gpus_that_are_not_known_yet_are_not_given() -> None:
    with pytest.raises(InvalidObject, match="to be known"):
        environment({"gpu": [gpu(0)]}, node=node_devices(None, XpuSet(), ()))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "a\n", "x" * 64, "-a"])
def test_names_never_lead_out_of_the_monitors_directory(name: str) -> None:
    allocated = {"gpu": [gpu(1, HALF)]}
    with pytest.raises(InvalidObject, match="wanted"):
        environment(allocated, uid=name, monitored=True)
    with pytest.raises(InvalidObject, match="wanted"):
        environment(allocated, container=name, monitored=True)


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.sampled_from(["50", "1Gi"])
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "minor": st.integers(-2, 3) | values,
        "id": st.sampled_from(["", "G0", "G1"]) | values,
        "resources": st.dictionaries(
            st.sampled_from([f"koordinator.sh/{name}" for name in HALF]), values
        ),
    },
)


@given(
    st.lists(entries, max_size=3) | values,
    st.text(max_size=5) | st.just("ab-1"),
    st.text(max_size=5) | st.just("main"),
)
def test_any_annotation_is_bounded_or_refused(allocated: Any, uid: str, container: str) -> None:
    """Never another error, a GPU or an amount that the node does not have, or another path."""
    try:
        found = environment({"gpu": allocated}, uid=uid, container=container, monitored=True)
    except InvalidObject:
        return
    assert set(filter(None, found.env.get("NVIDIA_VISIBLE_DEVICES", "").split(","))) <= {"0", "1"}
    assert 1 <= int(found.env.get("CUDA_DEVICE_MEMORY_LIMIT", 1)) <= 32 * GIB
    assert 1 <= int(found.env.get("CUDA_DEVICE_SM_LIMIT", 1)) <= 100
    if found.directory:
        assert re.fullmatch(r"/usr/local/vgpu/containers/[\w-]+_[\w-]+", found.directory)


def test_a_share_is_what_was_requested() -> None:
    """The amount that was not requested follows from the other one, not from the annotation."""
    asked = {"koordinator.sh/gpu-memory": "1Gi"}
    little = {"gpu": [gpu(0, {"gpu-memory-ratio": "100", "gpu-memory": "1Gi"})]}
    found = environment(little, provider="HAMi-core", requests=asked)
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT"] == str(GIB)
    whole = {"gpu": [gpu(0, {"gpu-memory-ratio": "100", "gpu-memory": "32Gi"})]}
    asked = {"koordinator.sh/gpu-memory": "32Gi"}
    assert environment(whole, provider="HAMi-core", requests=asked).mounts == ()
    much = {"gpu": [gpu(0, {"gpu-memory-ratio": "10", "gpu-memory": "32Gi"})]}
    asked = {"koordinator.sh/gpu-memory-ratio": "10"}
    found = environment(much, provider="HAMi-core", requests=asked)
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT"] == str(32 * GIB * 12 // 100)
