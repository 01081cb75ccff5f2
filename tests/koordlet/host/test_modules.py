"""Modules of traffic control, as `koordletctl doctor` finds them."""

import os

import pytest

from koordlet.doctor.probes import MODULES, probe_modules


@pytest.mark.parametrize(
    ("loaded", "listed", "supported"),
    [
        (True, None, True),
        (False, None, None),  # as in a pod
        (False, "kernel/net/sched/{}.ko:", True),
        (False, "kernel/net/sched/{}.ko.xz: kernel/a.ko", True),
        (False, "kernel/net/sched/other_{}.ko:", False),
        (True, "kernel/other.ko:", True),
    ],
)
def test_a_module_is_loaded_or_listed(tmp_path, loaded, listed, supported):
    """Or it is not known: no directory of modules is to be seen."""
    for name in MODULES:
        if loaded:
            (tmp_path / "sys/module" / name).mkdir(parents=True)
    if listed is not None:
        directory = tmp_path / "modules" / os.uname().release
        directory.mkdir(parents=True)
        lines = "\n".join(listed.format(name) for name in MODULES)
        (directory / "modules.dep").write_text(lines)

    found = list(probe_modules(tmp_path / "sys", tmp_path / "modules"))

    assert {each.supported for each in found} == {supported}
    assert [each.name for each in found] == ["module sch_htb", "module cls_u32"]
    for each in found:
        assert each.needed_by == ("TCNetworkQoS",)
        assert bool(each.fix) is not bool(supported)
