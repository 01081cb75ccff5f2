"""Kernel files that plugins declare: which, of which form, and their definitions."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koordlet.host.kernelfile import (
    MAX_DEFINITION_LENGTH,
    ChoiceForm,
    IntegerForm,
    IntegerOrMaxForm,
    KernelFile,
)
from koordlet.host.resource import Root
from koordlet.host.resources import BY_NAME

PERCENT = IntegerForm(0, 100)
TASKS = IntegerOrMaxForm(1, 4_194_304)
TEMPERATURES = ChoiceForm(("hot", "cold"))
FILES = ("pids.max", "memory.swappiness", "misc.max", "/proc/sys/vm/swappiness", "blkio.weight_x")


def test_a_declared_file_is_a_row():
    """With the controller that its name begins with, on the versions that may have it."""
    row = KernelFile("pids.max", "tasks", TASKS)

    assert (row.name, row.unit, repr(row)) == ("pids.max", "tasks", "KernelFile(pids.max)")
    found = {v: (f.root, f.controller, f.name) for v, f in row.files.items()}
    assert found == dict.fromkeys((1, 2), (Root.CGROUP, "pids", "pids.max"))
    assert list(KernelFile("blkio.x", "x", PERCENT).files) == [1]
    assert list(KernelFile("io.prio.class", "x", TEMPERATURES).files) == [2]
    sysctl = KernelFile("/proc/sys/vm/swappiness", "percent", PERCENT).files[2]
    assert (sysctl.root, sysctl.name) == (Root.PROC, "sys/vm/swappiness")


HOSTILE = [
    "cgroup.procs",
    "cgroup.kill",
    "cgroup.subtree_control",
    "cgroup.freeze",
    "tasks",
    "release_agent",
    "notify_on_release",
    "memory.stat",
    "memory.max_usage_in_bytes",
    "memory.memsw.failcnt",
    "memory.reclaim",
    "memory.force_empty",
    "memory.kmem.limit_in_bytes",
    "memory.pressure",
    "pids.events",
    "pids.current",
    "hugetlb.2MB.rsvd.current",
    "cpuset.cpus.partition",
    "cpuset.cpu_exclusive",
    "freezer.state",
    "devices.allow",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/usermodehelper/bset",
    "/proc/sys/kernel/modules_disabled",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/sched_domain/../core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/mmap_min_addr",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/dirty_bytes",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sysrq-trigger",
    "/proc/self/mem",
    "/sys/kernel/uevent_helper",
    "/etc/passwd",
    "pids/pids.max",
    "pids.max/../cgroup.procs",
    "../pids.max",
    "pids..max",
    "pids.",
    "pids",
    "pids.max\n",
    "pids.ma\u0445",
    "pids.{}",
    "p" * 5000,
    "",
    None,
    7,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:40])
def test_other_files_are_refused(name):
    """In one sentence that has the name, or the start of it."""
    with pytest.raises(InvalidObject, match="wanted a setting of a cgroup controller") as caught:
        KernelFile(name, "x", PERCENT)
    assert len(str(caught.value)) < 400


def test_files_of_the_table_are_refused_by_the_row_that_has_them():
    """Whatever the declaration calls them."""
    with pytest.raises(InvalidObject, match=r"cpu\.cfs_quota_us, which is CPU_QUOTA of koordlet"):
        KernelFile("cpu.cfs_quota_us", "us", PERCENT)
    for row in BY_NAME.values():
        for file in row.files.values():
            root = file.root.value if isinstance(file.root, Root) else file.root.directory
            for name in (file.name, *file.others, f"/{root}/{file.name}", row.name):
                with pytest.raises(InvalidObject):
                    KernelFile(name, "x", PERCENT)


@pytest.mark.parametrize(
    ("unit", "form", "needs"),
    [
        ("", PERCENT, ""),
        ("x" * 81, PERCENT, ""),
        ("a\nb", PERCENT, ""),
        (None, PERCENT, ""),
        ("x", PERCENT, "\x1b[2J"),
        ("x", PERCENT, None),
        ("x", None, ""),
        ("x", {"low": 0, "high": 1}, ""),
    ],
)
def test_unusable_parts_are_refused(unit, form, needs):
    with pytest.raises(InvalidObject):
        KernelFile("pids.max", unit, form, 7 if needs is None else needs)


@pytest.mark.parametrize(
    "make",
    [
        lambda: IntegerForm(2, 1),
        lambda: IntegerForm(0, 2**63),
        lambda: IntegerForm(-(2**63) - 1, 0),
        lambda: IntegerForm(0.0, 1),
        lambda: IntegerForm(False, True),
        lambda: IntegerForm("0", "1"),
        lambda: IntegerOrMaxForm(-1, 5),
        lambda: ChoiceForm(("one",)),
        lambda: ChoiceForm(("a", "a")),
        lambda: ChoiceForm(["a", "b"]),
        lambda: ChoiceForm(("a", "b c")),
        lambda: ChoiceForm(("a", "b\n")),
        lambda: ChoiceForm(("a", "")),
        lambda: ChoiceForm(("a", 7)),
        lambda: ChoiceForm("ab"),
        lambda: ChoiceForm(tuple(f"w{n}" for n in range(17))),
    ],
)
def test_unusable_forms_are_refused(make):
    with pytest.raises(InvalidObject, match="form of a kernel file: wanted"):
        make()


@pytest.mark.parametrize(
    ("form", "shown", "value", "unusable"),
    [
        (PERCENT, b"60\n", 60, (b"60", b"a\n", b"1 2\n", b"max\n", b"9" * 30 + b"\n", b"")),
        (PERCENT, b"-3\n", -3, ()),
        (TASKS, b"max\n", -1, (b"-1\n", b"max", b"max 5\n", b"9" * 30 + b"\n")),
        (TASKS, b"12\n", 12, ()),
        (TEMPERATURES, b"hot\n", "hot", (b"hot", b"warm\n", b"[hot] cold\n", b"\xff\n", b"")),
    ],
)
def test_a_file_is_read_and_written_back_as_it_is(form, shown, value, unusable):
    """What cannot be read is not claimed either, so that all that is written can be restored."""
    file = KernelFile("pids.max", "x", form).files[2]

    assert file.parse(shown) == value
    assert f"{file.text.of(value)}\n".encode() == shown
    assert file.may_restore(shown.decode().strip())
    for data in unusable:
        with pytest.raises(ValueError, match="wanted"):
            file.parse(data)


@pytest.mark.parametrize(
    ("form", "may", "may_not", "no_value"),
    [
        (PERCENT, ("0", "100"), ("101", "-1", "max"), ("5", 5.0, True, None)),
        (TASKS, ("1", "max"), ("0", "4194305", "-1"), ("max", True)),
        (TEMPERATURES, ("hot",), ("warm", "hot\n", ""), ("warm", 7, None, ["hot"])),
    ],
)
def test_only_values_of_the_declaration_are_written(form, may, may_not, no_value):
    file = KernelFile("pids.max", "x", form).files[1]

    assert [text for text in may if not file.validate(text)] == []
    assert [text for text in may_not if file.validate(text)] == []
    for value in no_value:
        with pytest.raises(ValueError, match="wanted"):
            file.text.of(value)


words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}\Z", fullmatch=True)
forms = st.one_of(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)).map(
        lambda pair: IntegerForm(*sorted(pair))
    ),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(
        lambda pair: IntegerOrMaxForm(*sorted(pair))
    ),
    st.lists(words, min_size=2, max_size=16, unique=True).map(
        lambda found: ChoiceForm(tuple(found))
    ),
)
units = st.text(min_size=1, max_size=80).filter(str.isprintable)


@given(st.sampled_from(FILES), units, forms)
def test_a_definition_makes_the_row_again(file, unit, form):
    """Within its bound, whatever was declared."""
    row = KernelFile(file, unit, form, needs="a module")

    assert len(row.definition) <= MAX_DEFINITION_LENGTH
    again = KernelFile.from_definition(file, row.definition)
    assert (again, again.unit, again.form) == (row, unit, form)
    assert again.definition == row.definition


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
definitions = st.fixed_dictionaries(
    {},
    optional={
        "unit": json_values,
        "form": st.sampled_from(["whole number", "number or max", "one word"]) | json_values,
        "low": json_values,
        "high": json_values,
        "words": json_values,
        "file": json_values,
    },
)


@given(st.text(max_size=60) | definitions.map(json.dumps))
def test_any_text_is_a_definition_or_refused(text):
    try:
        row = KernelFile.from_definition("pids.max", text)
    except InvalidObject:
        return
    assert KernelFile.from_definition("pids.max", row.definition).form == row.form


@pytest.mark.parametrize("text", ["[" * 2000, "{" * 2000, '{"unit":' * 200, " " * 10**6, "7"])
def test_definitions_that_are_none_cost_little(text):
    with pytest.raises(InvalidObject) as caught:
        KernelFile.from_definition("pids.max", text)
    assert len(str(caught.value)) < 300


def test_two_rows_of_one_file_are_equal():
    """So that a claim, a record and another plugin's declaration are about the same value."""
    one, same = (
        KernelFile("pids.max", unit, form) for unit, form in (("x", TASKS), ("y", PERCENT))
    )

    assert one == same
    assert hash(one) == hash(same)
    assert one != KernelFile("pids.maxx", "x", TASKS)
    assert one not in BY_NAME.values()
