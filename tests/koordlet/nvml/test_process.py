"""What a helper answers is checked like any other input."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.nvml.process import GpuResponse, HelperError, parse_response

GPU = {
    "uuid": "GPU-1",
    "minor": 0,
    "model": "NVIDIA T4",
    "memory": 100,
    "bus": "0000:3b:00.0",
    "error": "",
    "processes": [[7, 40.5, 10]],
}


def answer(**changes: object) -> bytes:
    return json.dumps({"driver": "550", "gpus": [GPU | changes]}).encode()


def test_a_good_one() -> None:
    found = parse_response(answer(error="Xid 79!"))
    assert found.driver == "550"
    assert found.gpus[0].gpu.error == "Xid_79"
    assert found.gpus[0].processes[0].core == 40.5


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"driver": "550", "gpus": 7}',
        b'{"error": "no \\u001b[31mdriver"}',
        answer(uuid=""),
        answer(uuid="GPU\n1"),
        answer(uuid="x" * 500),
        answer(minor=-1),
        answer(minor=2**31),
        answer(minor=True),
        answer(memory=1e300),
        answer(processes=[[1, 2]]),
        answer(processes=[[1, 101, 0]]),
        answer(processes=[[-1, 10, 0]]),
        answer(processes="x"),
        json.dumps({"driver": "550", "gpus": [GPU, GPU]}).encode(),
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_used_is_refused(line: bytes) -> None:
    with pytest.raises(HelperError) as caught:
        parse_response(line)
    assert "\x1b" not in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes(line: bytes) -> None:
    try:
        parse_response(line)
    except HelperError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(GPU)), JSON))
def test_any_values(changes: dict[str, object]) -> None:
    try:
        found = parse_response(answer(**changes))
    except HelperError:
        return
    assert isinstance(found, GpuResponse)
    for gpu in found.gpus:
        assert 0 <= gpu.gpu.minor < 2**31
        assert gpu.gpu.uuid.isprintable()
