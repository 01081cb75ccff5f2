"""Arguments of VolumeBinding."""

from typing import Any

import pytest

from koord.component.plugins.args import args_type_of
from koord_scheduler_plugins.volume_binding import VolumeBinding
from koord_scheduler_plugins.volume_binding.podvolumes import ShapePoint, VolumeBindingArgs


def read(value: Any) -> tuple[Any, list[str]]:
    declared = args_type_of(VolumeBinding)
    assert declared is not None
    found, faults = declared.read(value, ("args",))
    return found, [str(fault) for fault in faults]


def test_defaults_and_a_shape() -> None:
    """Kubernetes' default is ten minutes."""
    assert read(None) == (VolumeBindingArgs(), [])
    assert VolumeBindingArgs().bind_timeout_seconds == 600
    shape = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
    found, faults = read({"bindTimeoutSeconds": 0, "shape": shape})
    assert not faults
    points = [ShapePoint(utilization=0, score=0), ShapePoint(utilization=100, score=10)]
    assert found == VolumeBindingArgs(bind_timeout_seconds=0, shape=tuple(points))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"bindTimeoutSeconds": -1}, "wanted 0 or more seconds"),
        ({"shape": []}, "at least one point must be specified"),
        ({"shape": [{"utilization": 101, "score": 1}]}, "not in valid range [0-100]"),
        ({"shape": [{"utilization": 1, "score": 11}]}, "not in valid range [0-10]"),
        (
            {"shape": [{"utilization": 5, "score": 1}, {"utilization": 5, "score": 2}]},
            "must be sorted in increasing order",
        ),
    ],
)
def test_what_is_refused(value: Any, fault: str) -> None:
    found, faults = read(value)
    assert found is None
    assert len(faults) == 1
    assert fault in faults[0]
