"""Models as files: Koordinator's form, hostile and damaged files, and a directory that fails."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koord.util.ownedfiles import OwnedDirectory
from koordlet.prediction.checkpoints import (
    CheckpointFiles,
    decode_checkpoint,
    encode_checkpoint,
)
from koordlet.prediction.models import CPU_BUCKETS, Checkpoint, DecayingHistogram, HistogramSnapshot

from .conftest import HOUR, unix

POD = "0b3f6a6e-2c1d-4a52-9d8f-6f0e9d1c2b3a"
T = unix("2026-07-01T00:00:00Z")
EMPTY = HistogramSnapshot(None, {}, 0.0)
UPSTREAM = (
    f'{{"UID":"{POD}","CPU":{{"referenceTimestamp":"2026-07-01T08:00:00.000000000+08:00",'
    '"bucketWeights":{"22":10000,"30":5000},"totalWeight":3.00004},"Memory":'
    '{"referenceTimestamp":"0001-01-01T00:00:00Z","bucketWeights":{},"totalWeight":0},'
    '"LastUpdated":"2026-07-01T00:10:00Z"}\n'
).encode()


def checkpoint(**fields):
    cpu = HistogramSnapshot(T, {22: 2.0, 30: 1.0, 40: 0.00004}, 3.00004)
    return Checkpoint(**{"id": POD, "cpu": cpu, "memory": EMPTY, "updated": T, "since": T} | fields)


def files(tmp_path):
    return CheckpointFiles(lambda: OwnedDirectory.open(tmp_path / "checkpoints"))


def test_the_form_is_koordinators():
    found = json.loads(encode_checkpoint(checkpoint()))
    assert found["UID"] == POD
    assert found["CPU"] == {
        "referenceTimestamp": "2026-07-01T00:00:00Z",
        "bucketWeights": {"22": 10000, "30": 5000},
        "totalWeight": 3.00004,
    }
    assert found["Memory"] == {
        "referenceTimestamp": "0001-01-01T00:00:00Z",
        "bucketWeights": {},
        "totalWeight": 0.0,
    }
    assert found["LastUpdated"] == "2026-07-01T00:00:00Z"


def test_koordinators_own_file_is_read():
    found = decode_checkpoint(UPSTREAM, POD)
    assert found.cpu.reference == T
    assert found.cpu.weights == pytest.approx({22: 2.0000267, 30: 1.0000133})
    assert found.cpu.total == 3.00004
    assert found.memory == EMPTY
    assert found.updated == T + 600
    assert found.since is None


def test_a_model_without_any_weight_is_written():
    """Upstream divides by zero."""
    empty = checkpoint(cpu=HistogramSnapshot(T, {}, 0.0))
    assert decode_checkpoint(encode_checkpoint(empty), POD) == empty


@given(st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 1e8)), max_size=30))
def test_what_is_written_is_read(samples):
    histogram = DecayingHistogram(CPU_BUCKETS, 12 * HOUR)
    for value, at in samples:
        histogram.add(value, T + at)
    found = decode_checkpoint(encode_checkpoint(checkpoint(cpu=histogram.snapshot())), POD)
    again = DecayingHistogram(CPU_BUCKETS, 12 * HOUR)
    again.restore(found.cpu)
    assert found.cpu.total == histogram.snapshot().total
    # Each of the 30 weights is rounded to one part in 10,000 of the largest.
    low, high = histogram.percentile(0.498), histogram.percentile(0.502)
    assert low * 0.94 - 0.03 <= again.percentile(0.5) <= high * 1.06 + 0.03


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b'"22":10000', b'"222":10000', "CPU.bucketWeights"),
        (b'"22":10000', b'"-1":10000', "CPU.bucketWeights"),
        (b'"22":10000', b'"22":-4', "CPU.bucketWeights"),
        (b'"22":10000', b'"22":1.5', "CPU.bucketWeights.22"),
        (b'"22":10000', b'"22":' + b"9" * 400, "CPU.bucketWeights"),
        (b"3.00004", b"-1", "CPU.totalWeight"),
        (b"3.00004", b"1e400", "CPU.totalWeight"),
        (b"3.00004", b"1e99", "CPU.totalWeight"),
        (b"2026-07-01T08", b"someday", "CPU.referenceTimestamp"),
        (POD.encode(), b"another-pod", "UID"),
        (b'"CPU":{', b'"CPU":[{', "JSON"),
        (b"}\n", b"", "JSON"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(old, new, named):
    with pytest.raises(InvalidObject, match=named):
        decode_checkpoint(UPSTREAM.replace(old, new, 1), POD)


def test_a_damaged_file_is_found_out_by_its_checksum():
    data = encode_checkpoint(checkpoint()).replace(b"5000", b"5001")
    with pytest.raises(InvalidObject, match="Checksum"):
        decode_checkpoint(data, POD)


@given(st.binary() | st.builds(lambda text: text.encode(), st.text()))
def test_no_file_crashes_the_reader(data):
    with pytest.raises(InvalidObject):
        decode_checkpoint(data, POD)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)


@given(_JSON, _JSON, _JSON)
def test_no_json_crashes_the_reader(cpu, memory, when):
    content = {"UID": POD, "CPU": cpu, "Memory": memory, "LastUpdated": when}
    try:
        found = decode_checkpoint(json.dumps(content).encode(), POD)
    except InvalidObject:
        return
    DecayingHistogram(CPU_BUCKETS, HOUR).restore(found.cpu)


def test_files_are_kept_for_current_models_only(tmp_path):
    kept = files(tmp_path)
    gone = "11111111-2222-3333-4444-555555555555"
    for name in (POD, gone, "__node__"):
        assert kept.save(checkpoint(id=name))
    directory = tmp_path / "checkpoints"
    (directory / f"{POD}.tmp").write_bytes(b"{")
    (directory / "README").write_text("not a model")
    found = files(tmp_path).load({POD, "__node__"})
    assert {one.id for one in found} == {POD, "__node__"}
    assert sorted(os.listdir(directory)) == [
        "0b3f6a6e-2c1d-4a52-9d8f-6f0e9d1c2b3a",
        "README",
        "__node__",
    ]


def test_a_torn_file_is_removed_and_the_others_are_read(tmp_path):
    kept = files(tmp_path)
    kept.save(checkpoint())
    kept.save(checkpoint(id="__node__"))
    path = tmp_path / "checkpoints" / POD
    path.write_bytes(path.read_bytes()[:40])
    assert [one.id for one in kept.load({POD, "__node__"})] == ["__node__"]
    assert not path.exists()
    assert kept.problem == ""


def test_a_link_is_not_followed(tmp_path):
    kept = files(tmp_path)
    kept.save(checkpoint())
    path = tmp_path / "checkpoints" / POD
    path.unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(UPSTREAM)
    path.symlink_to(outside)
    assert kept.load({POD}) == []
    assert kept.save(checkpoint())
    assert outside.read_bytes() == UPSTREAM
    assert not path.is_symlink()


def test_without_a_directory_it_says_so_until_there_is_one(tmp_path):
    kept = files(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    assert not kept.save(checkpoint())
    assert "checkpoints" in kept.problem
    (tmp_path / "checkpoints").unlink()
    assert kept.save(checkpoint())
    assert kept.problem == ""
