"""Texts of resctrl: schemata, names of groups, and which group a process is in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import resctrl
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resctrl import (
    is_group_name,
    is_membership,
    last_status,
    parse_membership,
    parse_presence,
)
from koordlet.host.resources import (
    RESCTRL_CBM_MASK,
    RESCTRL_GROUP,
    RESCTRL_L3,
    RESCTRL_MB,
    RESCTRL_TASKS,
)
from koordlet.plugin.testing import FakeHost
from koordlet.plugin.testing.kernel import FakeResctrl

INTEL = b"    MB:0=100;1= 90\n    L3:0=7ff;1=00f\n"  # as Linux 5.15 fills up


@pytest.mark.parametrize(
    ("resource", "text", "value"),
    [
        ("L3", INTEL, "0=7ff;1=f"),
        ("MB", INTEL, "0=100;1=90"),
        ("MB", b"MB:0=2048;1=2048;2=2048\nL3:0=ffff;1=ffff;2=ffff\n", "0=2048;1=2048;2=2048"),
        ("L3", b"L3:1=f;0=3\n", "0=3;1=f"),
        ("L3", b"L3:0=FF;\n", "0=ff"),
    ],
)
def test_lines_of_schemata(resource, text, value):
    assert resctrl.parse_line(resource, text) == value


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ("L3", b""),
        ("L3", b"MB:0=100\n"),
        ("L3", b"L3CODE:0=7ff\nL3DATA:0=7ff\n"),  # mounted with cdp
        ("L3", b"L3:\n"),
        ("L3", b"L3:0\n"),
        ("L3", b"L3:0=\n"),
        ("L3", b"L3:0=xyz\n"),
        ("L3", b"L3:-1=f\n"),
        ("MB", b"MB:0=f\n"),
        ("MB", b"MB:0=1;one=2\n"),
        ("L3", "L3:0=\u0661\n".encode()),
        ("L3", b"L3:" + b";".join(b"%d=f" % cache for cache in range(300)) + b"\n"),
    ],
)
def test_other_lines_are_refused(resource, text):
    with pytest.raises(ValueError, match="wanted"):
        resctrl.parse_line(resource, text)


@given(st.binary(max_size=200), st.sampled_from(["L3", "MB"]))
def test_any_text_is_a_line_that_can_be_written_or_refused(data, resource):
    try:
        value = resctrl.parse_line(resource, data)
    except ValueError:
        return
    text = resctrl.schemata_text(resource)
    assert text.of(text.value(value)) == value
    assert resctrl.parse_line(resource, text.content(value, data).encode()) == value


@given(st.dictionaries(st.integers(0, 65535), st.integers(0, 2**64 - 1), min_size=1, max_size=9))
def test_numbers_survive_their_text(numbers):
    for resource in ("L3", "MB"):
        if resource == "L3" or max(numbers.values()) < 10**16:
            assert resctrl.entries(resource, resctrl.render(resource, numbers)) == numbers


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (b"res:/\nmon:\n", "/"),
        (b"res:BE\nmon:\n", "BE"),
        (b"res:BE\nmon:m1\n", "BE/mon_groups/m1"),
        (b"res:/\nmon:m1/\n", "/mon_groups/m1"),
    ],
)
def test_the_group_of_a_process(text, group):
    assert parse_membership(text) == group


@pytest.mark.parametrize(
    "text", [b"", b"res:\nmon:\n", b"mon:\n", b"res:a/b\n", b"res:..\n", b"res:info\n", b"\xff"]
)
def test_no_group_of_a_process(text):
    with pytest.raises(ValueError, match="wanted"):
        parse_membership(text)


@given(st.text(max_size=40))
def test_no_name_leads_elsewhere(name):
    """Whatever a pod, a journal or another agent calls a group, it is a directory of the root."""
    if is_group_name(name):
        assert "/" not in name
        assert name not in (".", "..", "", "info", "mon_data", "mon_groups")
    if is_membership(name):
        assert ".." not in name.split("/")


@given(st.binary(max_size=40))
def test_a_group_is_there_or_not(data):
    try:
        assert parse_presence(data) in ("present", "absent")
    except ValueError:
        assert data.removesuffix(b"\n") not in (b"present", b"absent")


@pytest.fixture
def fake(tmp_path):
    return FakeHost(tmp_path, 2)


def test_reading_a_mounted_tree(fake):
    tree = FakeResctrl(fake)
    tree.make("BE")
    tree.start(7)
    host = Host(fake.paths, Descriptors(0))

    assert host.read(RESCTRL_L3) == "0=7ff;1=7ff"
    assert host.read(RESCTRL_MB, "BE") == "0=100;1=100"
    assert host.read(RESCTRL_CBM_MASK) == 0x7FF
    assert [host.read(RESCTRL_GROUP, name) for name in ("BE", "LS")] == ["present", "absent"]
    assert host.read(RESCTRL_TASKS, "7") == "/"


def test_without_resctrl_all_is_unsupported(fake):
    host = Host(fake.paths, Descriptors(0))
    fake.write("proc/7/cpu_resctrl_groups", "res:\nmon:\n")

    for row, group in ((RESCTRL_L3, ""), (RESCTRL_GROUP, "BE"), (RESCTRL_TASKS, "7")):
        with pytest.raises(Unsupported):
            host.read(row, group)


def test_a_file_in_the_place_of_a_group_is_an_error(fake):
    FakeResctrl(fake)
    fake.write("sys/fs/resctrl/BE", "")

    with pytest.raises(KernelFileError, match="found a file of that name"):
        Host(fake.paths, Descriptors(0)).read(RESCTRL_GROUP, "BE")


@pytest.mark.parametrize(
    ("text", "status"),
    [("ok\n", ""), ("Mask out of range\n", "Mask out of range"), ("\x1b[0m", "")],
)
def test_the_kernels_own_words(fake, text, status):
    fake.write("sys/fs/resctrl/info/last_cmd_status", text)

    assert last_status(fake.paths) == status
