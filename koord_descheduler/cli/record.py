"""The command `koord-descheduler record`: a cluster over time, in a file for replay."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import koord_descheduler
from koord.cluster.keptfields import reads_of, union
from koord.component.config.document import read_config
from koord.component.process import handle_signals
from koord.controlplane.commands import print_message, run_command
from koord.controlplane.offline import find_cluster
from koord.kube.client import ApiClient
from koord.kube.transport import Limits, Transport
from koord.util import goformat
from koord.util.clock import Clock, SystemClock
from koord.util.errors import OptionError
from koord.util.logs import LevelSpec, configure
from koord.util.stop import Stop
from koord_descheduler.backtest.recorder import LiveRecorder, RecordOptions, RecordProgress
from koord_descheduler.config import DeschedulerConfiguration, config_parser
from koord_descheduler.framework.profile import PluginRegistry, known_plugins
from koord_descheduler.planning import installed_plugins

NAME = "koord-descheduler record"
MAX_SIZE = 1024  # MiB
_MAX_PAGE_BYTES = 64 << 20  # bytes; 500 pods with all their managedFields
_CONNECTIONS = 16  # a watch of each kind

_ABOUT = """\
Record a cluster: NodeMetrics, nodes, pods and what else decides where a pod may go, and the
evictions that the descheduler's ledger has, until ^C or --for. Nothing is changed in the cluster.
`koord-descheduler replay` plays other configurations on the file."""
_EXIT = "Exit status: 0 done, 1 failed, or the file has its size; 2 the command line is wrong."


class RecordCommand(argparse.Namespace):
    """The options of a command line."""

    out: Path
    config: Path | None = None  # None: defaults, and replay needs one
    kubeconfig: str = ""  # "": the configuration's, or as kubectl finds it
    max_size: int = MAX_SIZE  # MiB
    seconds: float | None = None  # None: until it is stopped


def main(argv: Sequence[str], registry: PluginRegistry | None = None) -> int:
    """Record. Returns the exit status; see --help.

    registry has the plugins that the configuration may name; None: those that are installed.
    """
    options = parser().parse_args(argv, namespace=RecordCommand())
    plugins = registry or installed_plugins(NAME)
    return run_command(NAME, lambda: asyncio.run(_record(options, plugins, SystemClock())))


async def _record(options: RecordCommand, registry: PluginRegistry, clock: Clock) -> None:
    kubeconfig, namespace, text = _configured(options, registry)
    config = find_cluster(kubeconfig)
    limits = Limits(response_bytes=_MAX_PAGE_BYTES, connections=_CONNECTIONS)
    transport = Transport(config, clock, limits=limits, user_agent="koord-descheduler-record")
    configure("console", LevelSpec("warning"), NAME)  # what is long in coming shows
    client, stop = ApiClient(transport, clock), Stop(clock)
    handle_signals(stop, None)
    recorder = LiveRecorder(
        client,
        clock,
        RecordOptions(
            path=options.out,
            namespace=namespace,
            config=text,
            recorder=f"koord-descheduler {koord_descheduler.__version__}",
            most_bytes=options.max_size << 20,
            most_seconds=options.seconds,
        ),
        show=lambda progress: _show(progress, options.seconds),
        wait=lambda reason: print_message(NAME, reason),
        kept=union(reads_of(entry.plugin) for entry in registry),  # whichever replay enables
    )
    try:
        progress = await recorder.run(stop)
    except OSError as err:
        hint = "name a new file in a directory that this user can write to"
        raise OptionError("--out", f"{options.out}: {err.strerror}", hint) from err
    finally:
        await client.close()
    if progress is not None:
        _show(progress, options.seconds)


def _configured(options: RecordCommand, registry: PluginRegistry) -> tuple[str, str, str]:
    """Kubeconfig and namespace of the descheduler at work, and the text of its configuration.

    Without a configuration the defaults, and no text.
    """
    if options.config is None:
        defaults = DeschedulerConfiguration().complete()
        return options.kubeconfig, defaults.leader_election.resource_namespace, ""
    found = read_config(options.config, config_parser(known_plugins(registry))).configuration
    kubeconfig = options.kubeconfig or found.client_connection.kubeconfig
    return kubeconfig, found.leader_election.resource_namespace, options.config.read_text()


def _show(progress: RecordProgress, seconds: float | None) -> None:
    length = goformat.format_duration(float(round(progress.seconds)))
    if seconds is not None:
        length = f"{min(progress.seconds / seconds, 1.0):.0%}, {length}"
    print(
        f"{length}: {progress.nodes} nodes, {progress.reports} reports, "
        f"{progress.evictions} evictions, {progress.size / (1 << 20):.1f} MiB",
        file=sys.stderr,
    )


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = argparse.ArgumentParser(
        prog=NAME,
        description=_ABOUT,
        epilog=_EXIT,
        argument_default=argparse.SUPPRESS,  # fields of RecordCommand are the defaults
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="a file that is not there yet")
    add("--config", type=Path, metavar="FILE", help="that of the descheduler at work; kept in FILE")
    add("--kubeconfig", metavar="FILE", help="by default the configuration's, or KUBECONFIG")
    add("--max-size", type=_size, metavar="MIB", help=f"where it ends; {MAX_SIZE} by default")
    add("--for", dest="seconds", type=_duration, metavar="TIME", help="how long, as 24h")
    return command


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"wanted MiB, from 1 to {1 << 20}, found {text!r}")
    return int(text)


def _duration(text: str) -> float:
    try:
        seconds = goformat.parse_duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"wanted a time as 24h or 30m, found {text!r}")
    return seconds
