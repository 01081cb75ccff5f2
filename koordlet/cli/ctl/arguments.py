"""The command line of koordletctl, and the host directories that it names."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import koordlet
from koord.component.completion import PROGRAMS, SHELLS
from koordlet.host.paths import HOST_MODE, HostPaths

SORTS = ("cpu", "memory", "pressure", "throttling", "network")

_EXIT = "Exit status: 0 done, 1 failed, 2 the command line or the question is wrong."
_DOCTOR = """\
What this host supports, what is missing, which feature gate needs it, and what would provide it.
Asks the daemon; without one, or with a --*-root-dir, this command looks for itself, which may
see more or less than a daemon in a container."""
_DOCTOR_EXIT = """\
Exit status: 0 nothing is missing for the gates that are on; 1 something is; 2 wrong usage.
Without a daemon the gates are those that are on by default."""
_DRY_RUN = """\
The plugins in dry-run: their decisions are recorded and shown, and nothing is changed. PLUGIN
on puts one in dry-run, which restores its values; PLUGIN off has it act. That lasts until
the daemon ends, or reads a config file that says something about dry-run."""
_AUDIT = """\
The latest changes to the node, from the audit log, latest last. Asks the daemon, or with --dir
reads the files of a directory, which needs no daemon. The gate AuditEvents has them recorded."""
_RECORD = """\
Write samples, pods, NodeSLO, kernel values that plugins look at, and what was done to a file, which
has names, labels and annotations of pods and of the node in it."""
_REPLAY = """\
Run the plugins of this installation on a record in simulated time, and show side by side what they
would do and what was done. Needs no daemon and changes nothing. What the plugins would change has
no effect on the recorded usage; only a pod that they would evict is gone from then on."""
_RESTORE = """\
Restore the kernel values that a daemon left changed, because it was killed or runs with
--on-exit=keep. Needs no daemon, and refuses while one runs, which looks after its values itself.
What another agent has changed since is left alone."""
_PAGE = """\
Serve the status page on 127.0.0.1, from the control socket: plugins can be switched to dry-run and
back there. The address that is printed has a token in it, which counts once."""
_COMPLETION = """\
Print the completion of a program of this installation, for a shell to read:
  bash   source <(koordletctl completion bash)
  zsh    eval "$(koordletctl completion zsh)", after compinit
  fish   koordletctl completion fish | source"""
_TOP_KEYS = """\
Keys: q quits; c, m, p, t, n sort by cpu, memory, pressure, throttling, network; the arrows mark a
pod, Enter shows it alone, Escape all again."""


class CtlOptions(argparse.Namespace):
    """The options of a command line. Fields of other commands keep their defaults."""

    command: str
    output: Literal["table", "json"] = "table"
    run_dir: Path | None = None  # None: where daemons usually are
    # plugins, dry-run
    action: str | None = None
    plugin: str = ""
    switch: str = ""
    # metrics, explain, audit
    name: str | None = None
    pod: str | None = None
    window: str | None = None
    # audit
    lines: int = 50
    reason: str | None = None
    follow: bool = False
    dir: Path | None = None  # None: ask the daemon
    # page
    port: int = 0
    # completion
    shell: str = ""
    program: str = PROGRAMS[0]
    # words
    kind: str = ""
    # record, replay
    file: Path = Path()
    duration: str = "10m"
    nodeslo: Path | None = None  # None: the recorded one
    feature_gates: str = ""
    flags: Sequence[str] = ()
    timeline: bool = False
    # top
    sort: str = SORTS[0]
    interval: float = 1.0  # seconds between two looks
    once: bool = False
    # doctor, restore; None: the host's own
    cgroup_root_dir: Path | None = None
    proc_root_dir: Path | None = None
    sys_root_dir: Path | None = None
    sys_fs_root_dir: Path | None = None
    var_run_root_dir: Path | None = None


def parse(argv: Sequence[str] | None) -> CtlOptions:
    """Return the options; ends the process with 2 for a wrong command line, 0 for --help."""
    whole = parser()
    options = whole.parse_args(argv, namespace=CtlOptions())
    if options.plugin and options.command == "dry-run" and options.switch not in ("on", "off"):
        found = options.switch or "nothing"
        whole.error(f"dry-run {options.plugin}: wanted on or off after it, found {found}")
    return options


def parser() -> argparse.ArgumentParser:
    """The parser of koordletctl and its commands."""
    common = _common()
    whole = argparse.ArgumentParser(
        prog="koordletctl",
        description="Ask the koordlet of this machine.",
        epilog=_EXIT,
        parents=[common],
    )
    whole.add_argument("--version", action="version", version=f"koordletctl {koordlet.__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, description: str = "", epilog: str = _EXIT) -> _Parser:
        return commands.add_parser(
            name,
            help=summary,
            description=description or f"{summary[0].upper()}{summary[1:]}.",
            epilog=epilog,
            parents=[common],
            argument_default=argparse.SUPPRESS,  # fields of Options are the defaults
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    add("status", "the daemon's health, gates and extent")
    _roots(add("doctor", "what this host supports and lacks", _DOCTOR, _DOCTOR_EXIT))
    _plugins(add("plugins", "state and cost of the QoS plugins"), common)
    _metrics(add("metrics", "one kind of metric over a window, by series"))
    _explain(add("explain", "what is in force and what was decided about pods, and why"))
    _dry_run(add("dry-run", "show the plugins in dry-run; switch it", _DRY_RUN))
    _audit(add("audit", "the latest changes to the node, from the audit log", _AUDIT))
    _roots(add("restore", "restore the kernel values that a daemon left changed", _RESTORE))
    add("nodemetric", "the NodeMetric that was reported last")
    _record(add("record", "write what happens on the node to a file, for replay", _RECORD))
    _replay(add("replay", "what the plugins would do with a record", _REPLAY))
    _page(add("page", "the status page with its switches, for a browser here", _PAGE))
    _completion(add("completion", "print what a shell completes command lines by", _COMPLETION))
    _top(add("top", "live use of node, QoS classes and pods", epilog=f"{_TOP_KEYS}\n{_EXIT}"))
    words = commands.add_parser("words", parents=[common])  # for completions: not listed
    words.add_argument("kind", choices=("pods", "plugins", "kinds"))
    return whole


_Parser = argparse.ArgumentParser


def _common() -> _Parser:
    """Options for before or after the command; the absent one must not reset the other."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument(
        "--output", "-o", choices=("table", "json"), help="for people (table) or programs (json)"
    )
    common.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="run directory of the daemon to ask"
    )
    return common


def _roots(parser: _Parser) -> None:
    for name, what in (
        ("cgroup-root-dir", "the cgroup file system"),
        ("proc-root-dir", "the host's /proc"),
        ("sys-root-dir", "the host's /sys"),
        ("sys-fs-root-dir", "the host's /sys/fs"),
        ("var-run-root-dir", "the host's /var/run"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help=what)


def _plugins(parser: _Parser, common: _Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="release NAME")
    release = actions.add_parser(
        "release", help="take a plugin out of quarantine", parents=[common], epilog=_EXIT
    )
    release.add_argument("plugin", metavar="NAME")


def _explain(parser: _Parser) -> None:
    parser.add_argument(
        "pod",
        nargs="?",
        metavar="POD|CGROUP",
        help="only this one, in detail: namespace/name, name, UID; or a cgroup's path",
    )


def _dry_run(parser: _Parser) -> None:
    parser.add_argument("plugin", nargs="?", metavar="PLUGIN", help="its name, or all")
    parser.add_argument("switch", nargs="?", metavar="on|off")


def _audit(parser: _Parser) -> None:
    parser.add_argument("--lines", "-n", type=int, metavar="N", help="so many at most (50)")
    parser.add_argument("--pod", help="only those about this pod: namespace/name, name")
    parser.add_argument("--reason", help="only those with this reason, for example UpdateCgroups")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with those to come")
    parser.add_argument("--dir", type=Path, help="the --audit-log-dir to read")


def _metrics(parser: _Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the kind; without it: all kinds")
    parser.add_argument("--pod", help="only this pod and its containers: namespace/name, name, UID")
    parser.add_argument(
        "--window", metavar="DURATION", help="for example 30s or 5m; 1m if not given"
    )


def _record(parser: _Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="to write; it must not exist yet")
    parser.add_argument(
        "--duration", metavar="DURATION", help="for example 90s or 1h, which is the most (10m)"
    )


def _replay(parser: _Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a record")
    parser.add_argument("--nodeslo", type=Path, metavar="YAML", help="a NodeSLO to use instead")
    parser.add_argument(
        "--feature-gates", metavar="A=true,B=false", help="gates beside those that were on"
    )
    parser.add_argument(
        "--flag",
        action="append",
        dest="flags",
        metavar="NAME=VALUE",
        help="a flag of a plugin beside those that were given; may be repeated",
    )
    parser.add_argument("--timeline", action="store_true", help="every change, not only sums")


def _page(parser: _Parser) -> None:
    parser.add_argument("--port", type=int, metavar="PORT", help="of 127.0.0.1; any, if not given")


def _completion(parser: _Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.add_argument(
        "program", nargs="?", choices=PROGRAMS, default=PROGRAMS[0], help="koordletctl if not given"
    )


def _top(parser: _Parser) -> None:
    parser.add_argument("--sort", choices=SORTS, help="order of the pods (cpu)")
    parser.add_argument("--interval", type=seconds, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument(
        "--once",
        action="store_true",
        help="print all pods once; so it does when the output is not a terminal",
    )


def seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: use 0.1 to 3600 seconds")
    return value


def given_roots(options: CtlOptions) -> dict[str, Path]:
    """The directories that the command line names, by field of HostPaths."""
    given = {
        "cgroup": options.cgroup_root_dir,
        "proc": options.proc_root_dir,
        "sys": options.sys_root_dir,
        "sysfs": options.sys_fs_root_dir,
        "var_run": options.var_run_root_dir,
    }
    return {name: path for name, path in given.items() if path is not None}


def host_paths(options: CtlOptions) -> HostPaths:
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
