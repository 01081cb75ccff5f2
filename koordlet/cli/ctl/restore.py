"""koordletctl restore: restores the kernel values that a daemon left changed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from koord.component.terminal import ProgressReport, figure, prose, show, table
from koord.util.clock import SystemClock
from koord.util.errors import KoordError, UnsafeFile
from koord.util.ownedfiles import OwnedDirectory
from koordlet.cli.ctl.arguments import CtlOptions, given_roots, host_paths
from koordlet.cli.ctl.client import CtlClient
from koordlet.daemon.environment import RunDir, RunDirHeld
from koordlet.executor.claims.claim import ApplyResult, ClaimState, Key
from koordlet.executor.journal import JOURNAL_FILE, Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import parse_file
from koordlet.host.host import Host
from koordlet.host.procfiles import parse_boot_id

_ROOT_INODE = 1  # of a cgroup hierarchy as a whole; a namespace's part of it has another


def run(client: CtlClient, options: CtlOptions) -> int:
    """Show the results; fail when something is left."""
    run_dir = _run_dir(client.run_dirs, named=options.run_dir is not None)
    if run_dir is None:
        report: dict[str, Any] = {"run_dir": None, "values": [], "problem": ""}
    else:
        report = _restore(run_dir, options)
    show(report, lambda: view(report), options.output)
    left = any(value["outcome"] in ("failed", "refused") for value in report["values"])
    return 1 if left or report["problem"] else 0


def view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One row per value that was looked at, and what the counts are."""
    values = report["values"]
    if values:
        rows = table("<VALUE", "<OUTCOME", "NOW")
        for value in values:
            rows.add_row(figure(value["value"]), figure(value["outcome"]), prose(value["message"]))
        yield rows
        yield prose("")
    if report["problem"]:
        yield prose(report["problem"], "red")
    counts = dict.fromkeys(("restored", "left", "failed", "refused"), 0)
    for value in values:
        counts[value["outcome"]] += 1
    yield prose(
        f"{counts['restored']} restored, {counts['left']} were not ours any more or gone, "
        f"{counts['failed']} failed"
        + (f", {counts['refused']} refused" if counts["refused"] else "")
        if values
        else "nothing to restore"
    )


def _run_dir(run_dirs: Sequence[Path], *, named: bool) -> Path | None:
    """Return the first with a journal; None: none has.

    Raises:
        KoordError: one must not be used; or it was named, and is no run directory of a koordlet.
    """
    for path in run_dirs:
        try:
            directory = OwnedDirectory.open(path, create=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except UnsafeFile as err:
            raise KoordError(f"{path}: cannot be the run directory: {err}") from err
        except OSError as err:
            raise KoordError(
                f"{path}: wanted to look for a journal, found {err.strerror}; "
                "run this as the user of the daemon"
            ) from err
        found = (directory / JOURNAL_FILE).exists()
        directory.close()
        if found:
            return path
    if named:
        raise KoordError(
            f"{run_dirs[0]}: wanted a run directory with the journal of a koordlet, found none; "
            "give the --run-dir of the daemon that is gone"
        )
    return None


def _restore(run_dir: Path, options: CtlOptions) -> dict[str, Any]:
    """Do it, as the only one in this run directory."""
    paths = host_paths(options)
    host = Host(paths)
    if "cgroup" not in given_roots(options):
        _check_view(host)
    boot_id = parse_file(paths.proc / "sys/kernel/random/boot_id", parse_boot_id)
    try:
        with RunDir.open(run_dir, create=False) as held:
            journal = Journal(held.directory, boot_id)
            writer = Writer(host, journal, SystemClock())
            keys = list(writer.ledger)
            with ProgressReport(f"restoring {len(keys)} values") as report:
                applied = writer.restore(keys, at_once=True, progress=report.show)
            values = list(map(_as_json, keys, applied))
            values += [
                {"value": value, "outcome": "refused", "message": why}
                for value, why in writer.ledger.refused.items()
            ]
    except RunDirHeld as err:
        raise KoordError(
            f"{run_dir}: wanted to restore values, found koordlet at work (process {err.holder}); "
            "it does so itself when it is stopped or the plugin's gate is switched off"
        ) from err
    problem = "; ".join(filter(None, (journal.damage, journal.problem)))
    return {"run_dir": os.fspath(run_dir), "values": values, "problem": problem}


def _check_view(host: Host) -> None:
    """Values of groups that are out of sight would be taken for gone."""
    hierarchies = host.cgroups.hierarchies()
    if not any(os.stat(path).st_ino == _ROOT_INODE for path in hierarchies):
        raise KoordError(
            f"{host.paths.cgroup}: wanted all cgroups of the host, found "
            f"{'only those of a namespace' if hierarchies else 'none'}; run this on the host, or "
            "give --cgroup-root-dir"
        )


def _as_json(key: Key, applied: ApplyResult) -> dict[str, Any]:
    if applied.state is not ClaimState.GONE:
        return {"value": str(key), "outcome": "failed", "message": applied.message}
    now = applied.value
    message = ",".join(map(str, sorted(now))) if isinstance(now, frozenset) else now
    message = applied.message if now is None else str(message)
    outcome = "restored" if applied.wrote else "left"
    return {"value": str(key), "outcome": outcome, "message": message}
