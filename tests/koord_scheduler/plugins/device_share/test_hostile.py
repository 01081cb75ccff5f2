"""Objects and annotations that anyone may have written: they are read, or rejected in words."""

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.allocation import DevicesUnavailable, allocate
from koord.api.devices.layout import (
    PARTITIONS,
    DeviceTable,
    NodeTraits,
    read_devices,
)
from koord.api.devices.requests import (
    HINT_ANNOTATIONS,
    RESOURCES,
    InvalidRequest,
    pod_devices,
)
from koord.util.errors import InvalidObject
from koord_scheduler.plugin.testing import make_pod
from koord_scheduler_plugins.device_share.allocated import DEVICES
from tests.support.scheduler.devices import CORE, MEMORY, RATIO

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
KEYS = st.sampled_from(
    ("gpu", "rdma", "selector", "vfSelector", "matchLabels", "deviceTypes", "2", "minors", "")
)
JSON = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(KEYS, each, max_size=3)
)
QUANTITIES = st.sampled_from(("100", "-1", "1e999", "9E", "", "80Gi", "0.5")) | SCALARS
DEVICE = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(("gpu", "rdma", "fpga", "npu")) | SCALARS,
        "minor": st.integers(-2, 3) | SCALARS,
        "health": st.booleans() | SCALARS,
        "id": st.text(max_size=5) | SCALARS,
        "resources": st.dictionaries(st.sampled_from((CORE, RATIO, MEMORY)), QUANTITIES) | JSON,
        "topology": st.fixed_dictionaries(
            {}, optional={"nodeID": st.integers(-9, 2**70) | SCALARS, "pcieID": SCALARS}
        )
        | JSON,
        "vfGroups": JSON,
        "labels": JSON,
    },
)


@given(st.lists(DEVICE, max_size=6) | JSON, st.dictionaries(KEYS, JSON), st.integers(0, 8))
def test_any_device_object_is_read_or_rejected(devices, partitions, gpus):
    found = {
        "metadata": {"name": "n", "annotations": {PARTITIONS: json.dumps(partitions)}},
        "spec": {"devices": devices},
    }
    try:
        layout = read_devices(found).layout
    except InvalidObject:
        return
    wanted = pod_devices([("nvidia.com/gpu", gpus), (CORE, 0)], {})
    table = DeviceTable(layout, NodeTraits())
    assert all(amount >= 0 for one in table.free("gpu").values() for amount in one.values())
    if wanted is not None:
        with contextlib.suppress(DevicesUnavailable):
            given_ = allocate(table, wanted)
            assert len(given_["gpu"]) == gpus


@given(
    st.dictionaries(st.sampled_from(RESOURCES), st.integers(-5, 2**63)),
    st.dictionaries(st.sampled_from(HINT_ANNOTATIONS), JSON.map(json.dumps) | st.text(max_size=9)),
)
def test_any_request_is_understood_or_rejected(requests, annotations):
    with contextlib.suppress(InvalidRequest):
        found = pod_devices(requests.items(), annotations)
        assert found is None or all(
            amount > 0 for each in found.requests.values() for amount in each.values()
        )


@given(
    st.dictionaries(st.sampled_from(("gpu", "rdma", "fpga", "x")), st.lists(DEVICE, max_size=3))
    | JSON,
    st.integers(0, 100),
)
def test_any_annotation_counts_at_most_as_requested(allocated, percent):
    amounts = {CORE: str(percent), RATIO: str(percent)} if percent else {}
    spec = {"containers": [{"name": "a", "resources": {"requests": amounts}}]}
    pod = make_pod("a", node="n", spec=spec, annotations={DEVICE_ALLOCATED: json.dumps(allocated)})
    with contextlib.suppress(InvalidObject):
        for holding in DEVICES.holdings(pod):
            assert all(
                0 <= amount <= percent
                for name, amount in holding.amounts
                if name.endswith((CORE, RATIO))
            )
