"""The pages of commands: exit status, flags, HTTP, metrics."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from koord.component.flags import FlagRow
from koord.component.http.exposition import Exposition
from reference.markdown import code, codes, page, sentence, table

ACCESS = """\
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: x, cluster: {server: "https://x"}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
users: [{name: x, user: {}}]
"""
"""A kubeconfig of a server that nobody asks."""


_EXIT = {
    "0": "SIGTERM or SIGINT was received: the lease is released, or was never held; or "
    "`--write-config-to`, `--help` or `--version` is done",
    "1": "the lease was lost; the start failed (no API server is configured, an address is in use, "
    "a plugin cannot be made); or the stop was requested with `--leader-elect=false`",
    "2": "a flag or the file cannot be used; all that is wrong in the file is named",
}
_INERT = """
Accepted, and checked, but without effect; a flag that is set gets one warning
(`flags.without_effect`).
"""
_ENDPOINTS = {
    "`/`": "the [status page](operations.md#status-page); its data (`/page/stream`) is for those "
    "who may see `/configz`",
    "`/healthz`": "`ok`, or what is wrong; 503 while a part is unhealthy: the leader has not "
    "renewed its lease for its duration and 20 s, or a kind was not listed yet. `?verbose`, "
    "`?format=json`",
    "`/healthz/leaderElection`, `/healthz/ping`": "one check alone",
    "`/livez`": "200 while the event loop turns at least once a minute",
    "`/readyz`": "200 once the cluster is known",
    "`/metrics`": "the families below; text 0.0.4 or OpenMetrics",
}


def control_plane_page(
    name: str,
    intro: str,
    *,
    flags: str,
    rows: Iterable[FlagRow],
    endpoints: Mapping[str, str],
    http: str,
    metrics: str,
    families: str,
    more: Sequence[str] = (),
) -> str:
    """The page of a daemon of the control plane.

    flags, http and metrics introduce their tables, families is that of metrics. endpoints: its own,
    beside those of all. more: sections between flags and HTTP.
    """
    rows = list(rows)
    return page(
        name,
        intro,
        "## Exit status",
        table(("Status", "When"), _EXIT.items()),
        "## Flags",
        flags,
        flags_table(row for row in rows if not row.inert),
        "## Flags accepted for compatibility",
        _INERT,
        flags_table(row for row in rows if row.inert),
        *more,
        "## HTTP",
        http,
        table(("Path", "Answer"), {**_ENDPOINTS, **endpoints}.items()),
        "## Metrics",
        metrics,
        families,
    )


def flags_table(rows: Iterable[FlagRow]) -> str:
    """The flags."""
    return table(
        ("Flag", "Kind", "Default", "Meaning"),
        ((code(f"--{r.name}"), r.kind, code(r.default or '""'), sentence(r.help)) for r in rows),
    )


def families_table(exposition: Exposition, unsuffixed: Container[str] = ()) -> str:
    """The families of a daemon that was built; unsuffixed counters have no _total."""
    rows = {
        (code(each.name), each.type, codes(each.labels), sentence(each.text))
        for each in described(exposition, unsuffixed)
        if not each.name.startswith(("process_", "python_"))
    }
    return table(("Name", "Type", "Labels", "Meaning"), sorted(rows))


class Described(NamedTuple):
    """A family, with its name as in the text format."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def described(exposition: Exposition, unsuffixed: Container[str] = ()) -> Iterator[Described]:
    """The families of a daemon that was built."""
    for collector in exposition.internal._collectors:
        for metric in collector.collect():
            name, kind = metric.name, metric.type
            if name in unsuffixed:
                kind = "counter"
            elif kind == "counter":
                name += "_total"
            holder = metric if hasattr(metric, "_labelnames") else collector
            labels = tuple(holder._labelnames) if hasattr(holder, "_labelnames") else ()
            yield Described(name, kind, labels, metric.documentation)
