"""Devices in the kubelet's response: where they go, and that all else stays as it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.podresources import GivenDevices, with_devices

from .conftest import answer, container, devices, message, pod, varint

CPUS = message(3, b"\x00\x01\x02") + message(4, b"\x0a\x03abc") + varint(99 << 3) + varint(2**63)
GPU = GivenDevices("nvidia.com/gpu", ("GPU-1", "GPU-0"))
RDMA = GivenDevices("koordinator.sh/rdma", ("0000:09:00.2",))


def given_to(namespace: str, name: str) -> list[GivenDevices]:
    return [GPU, RDMA] if (namespace, name) == ("ml", "train") else []


def test_the_first_container_gets_them_sorted_by_resource() -> None:
    """Beside those that it has from the kubelet."""
    theirs = devices("m.example/fpga", "f0") + message(3, b"\x0a\x02\x08\x01")
    found = with_devices(
        answer(
            [
                pod("ml", "other", container("c", theirs, more=CPUS)),
                pod("ml", "train", container("c", theirs, more=CPUS), container("d")),
                pod("shop", "train", container("c")),
            ]
        ),
        given_to,
    )
    assert found == answer(
        [
            pod("ml", "other", container("c", theirs, more=CPUS)),
            pod(
                "ml",
                "train",
                message(1, "c")
                + CPUS
                + message(2, devices("koordinator.sh/rdma", "0000:09:00.2"))
                + message(2, theirs)
                + message(2, devices("nvidia.com/gpu", "GPU-1", "GPU-0")),
                container("d"),
            ),
            pod("shop", "train", container("c")),
        ]
    )


def test_a_pod_without_containers_gets_none() -> None:
    text = answer([pod("ml", "train")])
    assert with_devices(text, given_to) == text
    assert with_devices(b"", given_to) == b""


@pytest.mark.parametrize(
    "text",
    [
        b"\x0a",
        b"\x0a\x05a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x00\x00",
        b"\x0b",
        b"\x09\x01",
        answer([b"\x0a\x01\xff" + message(2, "ml")]),
        answer([message(1, "train") + message(2, "ml") + message(3, b"\x12\x05a")]),
        answer([varint(1 << 3) + b"\x07"]),
    ],
)
def test_what_is_no_such_message(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|integer|utf-8"):
        with_devices(text, given_to)


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5), st.binary(max_size=9))))
def test_what_is_not_ours_passes(pods: list[tuple[str, str, bytes]]) -> None:
    text = answer([pod(ns, name, container("c", more=message(7, raw))) for ns, name, raw in pods])
    assert with_devices(text, lambda _namespace, _name: []) == text


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_pass(text: bytes) -> None:
    try:
        found = with_devices(text, lambda _namespace, _name: [])
    except ValueError:
        return
    assert with_devices(found, lambda _namespace, _name: []) == found
