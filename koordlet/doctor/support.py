"""Findings about this host: what is supported or missing, for which gate, and what provides it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from koordlet.doctor.finding import Finding
from koordlet.doctor.needs import CONTROLLERS, NEEDS, Need
from koordlet.doctor.probes import probe_host, probe_run_dir
from koordlet.host.cgroups.cgroupfs import V1_ONLY
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.files import read_file, read_head
from koordlet.host.host import Host
from koordlet.host.kernelfile import KernelFile
from koordlet.host.net.tc.node import node_namespace
from koordlet.host.proc.namespaces import OWN
from koordlet.host.resource import Resource, Root
from koordlet.host.resources import DEFAULT_INTERFACE, DEFAULT_INTERFACE_6, INTERFACE_SPEED
from koordlet.host.topology.numa import numa_node_ids

_MOUNT = "mount the host's cgroup file system, or give --cgroup-root-dir"
_WRITABLE = "run as root, with that file system mounted writable"
_ROOTS = "check --cgroup-root-dir, --proc-root-dir and --sys-root-dir"


class Claimable(NamedTuple):
    """A value that a plugin from elsewhere may claim."""

    plugin: str
    gates: tuple[str, ...]  # any of them enables the plugin
    row: Resource[Any]


def findings(
    host: Host, run_dir: Path | None = None, claimable: Iterable[Claimable] = ()
) -> list[Finding]:
    """Look at the host, reading a little of every kind of file. Takes some milliseconds.

    run_dir is the daemon's state directory; None leaves it out. claimable: what other plugins than
    the shipped ones may claim. May be called on any thread.
    """
    found = [_hierarchies(host), *_controllers(host), _pods(host)]
    found += [_row(host, need) for need in NEEDS]
    found += [_claimable(host, each) for each in dict.fromkeys(claimable)]
    found += probe_host(host.paths)
    return found + ([probe_run_dir(run_dir)] if run_dir else [])


def _hierarchies(host: Host) -> Finding:
    available = host.cgroups.controllers()
    detail = f"{host.cgroups.flavour} below {host.paths.cgroup}"
    return Finding(
        "cgroup", "hierarchies", bool(available), (), detail, "" if available else _MOUNT
    )


def _controllers(host: Host) -> Iterator[Finding]:
    for name, gates in CONTROLLERS.items():
        present = host.cgroups.has(name)
        needs = "cgroup v1" if name in V1_ONLY else f"a kernel with the {name} controller"
        detail = f"v{host.cgroups.version(name)}" if present else "not available"
        fix = "" if present else needs
        yield Finding("cgroup", f"controller {name}", present, gates, detail, fix)


def _pods(host: Host) -> Finding:
    """The kubepods cgroups; a host without any lacks nothing."""
    layout = host.layout
    present = any((root / layout.root).is_dir() for root in host.cgroups.hierarchies())
    where = f"found at {layout.root}" if present else f"none here, expected at {layout.root}"
    return Finding("cgroup", "pods", True, (), f"driver {layout.driver.value}, {where}", "")


def _row(host: Host, need: Need) -> Finding:
    problems: dict[str, list[str]] = {}  # what is wrong -> rows
    fixes: dict[str, None] = {}  # in their order, each once
    found = 0
    for row in need.rows:
        try:
            _look(host, row)
            found += 1
        except (Unsupported, Vanished):
            problems.setdefault("missing", []).append(row.name)
            fixes[_provider(row)] = None
        except KernelFileError as err:
            problems.setdefault(err.found, []).append(row.name)
            fixes[err.hint] = None
    if need.one_is_enough and found:
        problems, fixes = {}, {}
    detail = "; ".join(f"{problem}: {', '.join(rows)}" for problem, rows in problems.items())
    return Finding(need.area, need.name, not problems, need.needed_by, detail, "; ".join(fixes))


def _claimable(host: Host, claim: Claimable) -> Finding:
    """Whether a value is there, and this process may write it."""
    row, name = claim.row, f"{claim.plugin} claims {claim.row.name}"
    try:
        if row.is_object:
            _look(host, row)
            return Finding("plugin", name, True, claim.gates, f"like {_example(host, row)}")
        path = _example(host, row)
        if isinstance(row, KernelFile):  # what a plugin declares of it may be wrong
            host.bind(row).parse(read_file(Path(path)))
        else:
            read_head(Path(path), 1)
    except (Unsupported, Vanished):
        return Finding("plugin", name, False, claim.gates, "missing", _provider(row))
    except KernelFileError as err:
        return Finding("plugin", name, False, claim.gates, err.found, err.hint)
    if not os.access(path, os.W_OK, effective_ids=True):
        detail = f"{path} cannot be written by this process"
        return Finding("plugin", name, False, claim.gates, detail, _WRITABLE)
    return Finding("plugin", name, True, claim.gates, f"like {path}")


def _look(host: Host, row: Resource[Any]) -> None:
    """See that a value of a row can be read. Raises KernelFileError."""
    if host.file(row).root in (Root.TRAFFIC, Root.INTERFACE, Root.SOCKET_GROUP):
        node_namespace(host.paths)  # to read it takes a helper process
        if host.file(row).root is Root.SOCKET_GROUP and host.cgroups.unified is None:
            raise Unsupported.here(str(host.paths.cgroup), "no hierarchy of cgroup v2", row.needs)
    elif row.is_object:
        host.bind(row, OWN if "{}" in host.file(row).name else "").text()
    else:
        read_head(Path(_example(host, row)), 1)


def _example(host: Host, row: Resource[Any]) -> str:
    """Return one file of a row that ought to be there. Raises Unsupported."""
    file = host.file(row)
    if file.root is Root.CGROUP:
        pods = host.layout.root
        has_pods = any((root / pods).is_dir() for root in host.cgroups.hierarchies())
        # The root group lacks many of the files that groups have.
        return host.path(row, pods if has_pods else next(iter(host.groups_below(row, "")), ""))
    if "{}" not in file.name or file.root is Root.RESCTRL:
        return host.path(row)
    if row is INTERFACE_SPEED:
        return host.path(row, _interface(host))
    numa_node = str(next(iter(numa_node_ids(host.paths.sys)), 0))
    return host.path(row, numa_node if file.root is Root.SYS else OWN)


def _interface(host: Host) -> str:
    """The interface of the default route."""
    for row in (DEFAULT_INTERFACE, DEFAULT_INTERFACE_6):
        with suppress(KernelFileError):
            if name := host.read(row):
                return name
    return "lo"


def _provider(row: Resource[Any]) -> str:
    """Return what would provide the file of a row."""
    if row.needs or not isinstance(row, KernelFile):
        return row.needs or _ROOTS
    kernel = "a kernel" if len(row.files) > 1 else f"cgroup v{next(iter(row.files))}"
    return f"{kernel} with {row.name}"
