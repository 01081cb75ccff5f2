"""Roots of the host's file systems for commands that look for themselves."""

import os
from dataclasses import replace
from pathlib import Path

from koordlet.cli.ctl.arguments import Options
from koordlet.host.paths import HOST_MODE, HostPaths


def given_roots(options: Options) -> dict[str, Path]:
    """The directories that the command line names, by field of HostPaths."""
    given = {
        "cgroup": options.cgroup_root_dir,
        "proc": options.proc_root_dir,
        "sys": options.sys_root_dir,
        "sysfs": options.sys_fs_root_dir,
        "var_run": options.var_run_root_dir,
    }
    return {name: path for name, path in given.items() if path is not None}


def host_paths(options: Options) -> HostPaths:
    """The host's own directories, unless the environment or the command line says otherwise."""
    mode = os.environ.get("agent_mode") or HOST_MODE  # noqa: SIM112 - Koordinator's spelling
    paths, given = HostPaths.for_mode(mode), given_roots(options)
    return replace(
        paths,
        cgroup=given.get("cgroup", paths.cgroup),
        proc=given.get("proc", paths.proc),
        sys=given.get("sys", paths.sys),
        sysfs=given.get("sysfs", paths.sysfs),
        var_run=given.get("var_run", paths.var_run),
    )
