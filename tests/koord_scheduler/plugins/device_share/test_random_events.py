"""Random events: whatever comes and goes, no device is given beyond what it has.

It is checked from outside, by the annotations of the pods that are there after each event.
KOORD_RANDOM_EVENTS is the number of events of each seed; 100000 take about two minutes, on a loaded
machine several times as long, so the time limit grows with them.
"""

import json
import os
from collections import Counter
from functools import lru_cache
from random import Random
from typing import Any

import pytest

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.requests import ALLOCATE_HINT, JOINT_ALLOCATE
from koord.api.quantity import Quantity
from koord_scheduler.plugin.testing import FakeCluster, PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from tests.support.scheduler.devices import CORE, MEMORY, RATIO, RDMA_SHARE, d8, device_object, h8

EVENTS = int(os.environ.get("KOORD_RANDOM_EVENTS", "400"))
NODES = ("n1", "n2", "n3")
FUNCTION = {ALLOCATE_HINT: '{"rdma":{"vfSelector":{}}}'}
JOINT = {**FUNCTION, JOINT_ALLOCATE: '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'}
REQUESTS: tuple[tuple[dict[str, int], dict[str, str]], ...] = (
    ({"nvidia.com/gpu": 1}, {}),
    ({"nvidia.com/gpu": 4}, {}),
    ({CORE: 30, RATIO: 30}, {}),
    ({RATIO: 70}, {}),
    ({MEMORY: 20 * 2**30}, {}),
    ({"koordinator.sh/gpu.shared": 2, CORE: 100, RATIO: 100}, {}),
    ({"nvidia.com/gpu": 2, RDMA_SHARE: 1}, JOINT),
    ({RDMA_SHARE: 1}, FUNCTION),
    ({RDMA_SHARE: 100}, {}),
)


def device(chance: Random, name: str) -> dict[str, Any]:
    """A Device as it is, shrunk, with cards that are not healthy, or one that lies."""
    found = d8(name) if name != "n3" else h8(name)
    devices = found["spec"]["devices"]
    match chance.randrange(6):
        case 0:
            del devices[chance.randrange(len(devices)) :]
        case 1:
            for one in chance.sample(devices, 3):
                one["health"] = False
        case 2:
            devices[0]["resources"] = {CORE: "-5", RATIO: "-5", MEMORY: "-1"}
        case 3:
            devices[1]["minor"] = devices[0]["minor"]
        case 4:
            return device_object(name, [{"type": "gpu", "minor": "many"}])
    return found


@lru_cache(maxsize=1024)
def held(text: str) -> tuple[tuple[tuple[str, int, str, int], ...], tuple[str, ...]]:
    """The amounts that an annotation says, by type, minor and resource, and the functions."""
    amounts, functions = [], []
    for kind, devices in json.loads(text).items():
        for one in devices:
            for resource, amount in one["resources"].items():
                amounts.append((kind, one["minor"], resource, Quantity.parse(amount).integer))
            functions += [each["busID"] for each in one.get("extension", {}).get("vfs", ())]
    return tuple(amounts), tuple(functions)


def check(cluster: FakeCluster) -> int:
    """Raise AssertionError if pods have a device twice; return how many pods have some."""
    shares: Counter[tuple[str, str, int, str]] = Counter()
    functions: Counter[tuple[str, str]] = Counter()
    count = 0
    for name in NODES:
        view = cluster.state.view()
        row = view.row(name)
        for pod in () if row is None else view.pods(row):
            text = dict(pod.annotations).get(DEVICE_ALLOCATED)
            if text is None or pod.finished:
                continue
            count += 1
            amounts, of_pod = held(text)
            for kind, minor, resource, amount in amounts:
                shares[name, kind, minor, resource] += amount
            functions.update((name, one) for one in of_pod)
    most = {MEMORY: 85198045184}
    assert all(amount <= most.get(place[3], 100) for place, amount in shares.items())
    assert set(functions.values()) <= {1}
    return count


@pytest.mark.timeout(600 + EVENTS // 20)
@pytest.mark.parametrize("seed", range(6))
async def test_no_device_is_given_beyond_what_it_has(seed):
    chance, cluster = Random(seed), fake_cluster()
    at = PluginHarness(DeviceShare, cluster)
    for name in NODES:
        cluster.node(name)
        at.informers.apply(DEVICE_OBJECTS, d8(name) if name != "n3" else h8(name))
    placed: list[str] = []
    most = 0
    async with at:
        for number in range(EVENTS):
            match chance.randrange(10):
                case 0:
                    name = chance.choice(NODES)
                    at.informers.apply(DEVICE_OBJECTS, device(chance, name))
                case 1 if chance.random() < 0.3:
                    at.informers.delete(DEVICE_OBJECTS, chance.choice(NODES))
                case 2 | 3 if placed:
                    gone = placed.pop(chance.randrange(len(placed)))
                    cluster.delete("Pod", f"default/{gone}")
                case _:
                    requests, annotations = chance.choice(REQUESTS)
                    texts = {name: str(amount) for name, amount in requests.items()}
                    spec = {"containers": [{"name": "a", "resources": {"requests": texts}}]}
                    pod = make_pod(f"p{number}", spec=spec, annotations=annotations)
                    if (await at.schedule(pod)).node is not None:
                        placed.append(pod.name)
                    elif cluster.state.pod(pod.key) is not None:
                        cluster.delete("Pod", pod.key)
            most = max(most, check(cluster))
        for name in placed:
            cluster.delete("Pod", f"default/{name}")
        for name in NODES:
            at.informers.apply(DEVICE_OBJECTS, d8(name) if name != "n3" else h8(name))
        subject = at.subject
        assert isinstance(subject, DeviceShare)
        view = cluster.state.view()
        tables = [subject.tables.table(view, row) for row in range(len(view))]
        assert [table.used if table is not None else None for table in tables] == [{}] * len(NODES)
    assert most >= 10
