"""Tables of a command's flags and metrics."""

from collections.abc import Container, Iterable, Iterator

from koord.component.flags import FlagRow
from koord.component.http.exposition import Exposition
from reference.markdown import code, codes, sentence, table

ACCESS = """\
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: x, cluster: {server: "https://x"}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
users: [{name: x, user: {}}]
"""
"""A kubeconfig of a server that nobody asks."""


def flags_table(rows: Iterable[FlagRow]) -> str:
    """The flags."""
    return table(
        ("Flag", "Kind", "Default", "Meaning"),
        ((code(f"--{r.name}"), r.kind, code(r.default or '""'), sentence(r.help)) for r in rows),
    )


def families_table(exposition: Exposition, unsuffixed: Container[str] = ()) -> str:
    """The families of a daemon that was built; unsuffixed counters have no _total."""
    rows = sorted(set(_families(exposition, unsuffixed)))
    return table(("Name", "Type", "Labels", "Meaning"), rows)


def _families(
    exposition: Exposition, unsuffixed: Container[str]
) -> Iterator[tuple[str, str, str, str]]:
    for collector in exposition.internal._collectors:
        for metric in collector.collect():
            name, kind = metric.name, metric.type
            if name.startswith(("process_", "python_")):
                continue
            if name in unsuffixed:
                kind = "counter"
            elif kind == "counter":
                name += "_total"
            holder = metric if hasattr(metric, "_labelnames") else collector
            labels = holder._labelnames if hasattr(holder, "_labelnames") else ()
            yield code(name), kind, codes(labels), sentence(metric.documentation)
