"""The kubelet's CPU manager checkpoint, as it is on disk."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koord.api.kubelet import CpuManagerState
from koordlet.host.errors import KernelFileError
from koordlet.statesinformer.topology_source import (
    MAX_STATE_BYTES,
    cpu_manager_state_file,
    read_cpu_manager_state,
)

# As a kubelet 1.35 writes it.
REAL = (
    '{"policyName":"static","defaultCpuSet":"0,3-7","entries":'
    '{"0f0a9e1c-5a0e-4b0f-9a4c-3d5b8a5f2f11":{"app":"1-2","sidecar":"2"}},"checksum":1164943270}'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return cpu_manager_state_file(tmp_path)


def test_a_real_one(file):
    """A pod has the CPUs of all its containers."""
    file.write_text(REAL)

    assert read_cpu_manager_state(file) == CpuManagerState(
        "static", {"0f0a9e1c-5a0e-4b0f-9a4c-3d5b8a5f2f11": frozenset({1, 2})}
    )


@pytest.mark.parametrize("text", ["", "\n", '{"checksum":1}', '{"entries":null}', "{}"])
def test_one_that_says_nothing(file, text):
    """A kubelet that has just started, or an old one, has given nothing away."""
    file.write_text(text)

    assert read_cpu_manager_state(file) == CpuManagerState()


def test_case_of_keys_and_broken_lists(file):
    """As Go reads JSON; a list that is none costs only itself."""
    file.write_text('{"PolicyName":"static","Entries":{"p":{"a":"1","b":"x-2","c":"4"}}}')

    assert read_cpu_manager_state(file) == CpuManagerState("static", {"p": frozenset({1, 4})})


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"null",
        b"7",
        b"policyName: static",
        b'{"entries":[]}',
        b'{"entries":{"p":"1-2"}}',
        b'{"entries":{"p":{"c":1}}}',
        b'{"policyName":1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"entries":{}}' + b" " * MAX_STATE_BYTES,
    ],
)
def test_what_is_no_checkpoint(file, data):
    """It is refused as a whole, with the file's name."""
    file.write_bytes(data)

    with pytest.raises(KernelFileError, match="cpu_manager_state: wanted"):
        read_cpu_manager_state(file)


def test_no_file(file):
    """A machine without kubelet, or with it in another directory."""
    with pytest.raises(KernelFileError, match="no such file"):
        read_cpu_manager_state(file)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["policyName", "entries", "p", "c"]), inner)
    ),
    max_leaves=8,
)


@given(st.binary(max_size=200) | _VALUES.map(lambda value: json.dumps(value).encode()))
@example(REAL.encode())
@example(b'{"entries":{"\\ud800":{"c":"1"}}}')
def test_any_bytes_are_a_checkpoint_or_an_error(tmp_path_factory, data):
    """Never anything else, whatever is in the file."""
    file = cpu_manager_state_file(tmp_path_factory.getbasetemp())
    file.write_bytes(data)

    with suppress(KernelFileError):
        state = read_cpu_manager_state(file)
        assert all(isinstance(cpus, frozenset) for cpus in state.entries.values())
        for uid in state.entries:
            uid.encode()
