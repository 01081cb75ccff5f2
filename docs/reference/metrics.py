"""docs/metrics.md."""

from collections.abc import Iterable

from reference.fakedaemon import measured_exposition
from reference.families import KOORDINATORS, Family, all_families
from reference.markdown import code, codes, page, sentence, table
from reference.othernames import MEANINGS

_INTRO = """
What `GET /metrics` says, and which kinds `koordletctl metrics` knows.

* `/metrics` is everything; `/internal-metrics` what concerns the agent and what Koordinator keeps
  there, `/external-metrics` the rest.
* Text format 0.0.4, or OpenMetrics 1.0 when the client asks for it; gzip when it accepts that.
* What could not be measured has no sample; it is never 0. A family whose gate is off has no
  samples.
* A histogram has the series `_bucket`, `_sum` and `_count`, a summary `_sum` and `_count`. No
  `_created`.
* `node` is the node's name, `device` a network interface, `qos` Koordinator's QoS class (`LSE`,
  `LSR`, `LS`, `BE`, `SYSTEM`), `qos_class` Kubernetes' (`guaranteed`, `burstable`, `besteffort`;
  with pressure also `kubepods` for all pods), `numa_node_id` the kernel's number of a NUMA node.
* `psi_resource_type` is `cpu`, `mem` or `io`; `psi_precision` `avg10`, `avg60` or `avg300`
  (seconds); `psi_degree` `some` or `full`; `cpu_full_supported` whether the kernel has `full` for
  this resource.
"""
_KOORDINATOR = """
Names, types and labels are Koordinator's. Its counters have no `_total`; OpenMetrics, which does
not know such counters, calls them `unknown`.
"""
_LACKING = """
Koordinator's families that this build does not have, because their subject is not built:
"""
_COMPAT = """
Only with `--exporter-compat` (default: when standalone). `--metrics-node-label=NAME` adds that
label with the node's name to the `node_*` families. Names and meanings are those of node_exporter
1.12 and of the kubelet's cAdvisor; an interface's field that the kernel does not have is left
out.
"""
_BY_KERNEL = """
Protocol statistics exist as far as the kernel knows the field: `node_netstat_<protocol>_<field>`
(untyped, node_exporter's default choice of fields) and `node_sockstat_<protocol>_<field>`
(gauge). On the kernel these pages were made with:
"""
_KINDS = """
The metric cache keeps one ring of samples per kind below `<run-dir>/metrics/`. `koordletctl
metrics KIND` shows averages and percentiles over a window. A kind without samples has no file. The
kinds are in the [plugin reference](plugin-api.md#metric-kinds).
"""
_NETSTAT, _SOCKSTAT = "node_netstat_", "node_sockstat_"


def metrics_page() -> str:
    """The whole page."""
    families = all_families(measured_exposition())
    koordinators = [family for family in families if family.name in KOORDINATORS]
    own = [f for f in families if f.name.startswith("koordlet_") and f not in koordinators]
    runtime = [f for f in families if f.name.startswith(("process_", "python_"))]
    foreign = [f for f in families if f not in koordinators and f not in own and f not in runtime]
    by_kernel = [f for f in foreign if f.name.startswith((_NETSTAT, _SOCKSTAT))]
    lacking = sorted(KOORDINATORS - {family.name for family in koordinators})
    return page(
        "Metrics",
        _INTRO,
        "## Koordinator's names",
        _KOORDINATOR,
        _families(koordinators),
        _LACKING + codes(lacking) + ".",
        "## Own names",
        _families(own),
        "## The process",
        "Made by prometheus_client.",
        _families(runtime),
        "## Other exporters' names",
        _COMPAT,
        _foreign(f for f in foreign if f not in by_kernel),
        _BY_KERNEL + codes(family.name for family in by_kernel) + ".",
        "## Kinds in the metric cache",
        _KINDS,
    )


def _families(families: Iterable[Family]) -> str:
    return table(
        ("Name", "Type", "Unit", "Labels", "Registry", "Gate", "Meaning"),
        (
            (
                code(family.name),
                family.type,
                family.unit,
                codes(family.labels),
                family.registry,
                codes(family.gates),
                sentence(family.text),
            )
            for family in families
        ),
    )


def _foreign(families: Iterable[Family]) -> str:
    """A name without a meaning is a KeyError: add it to othernames.py."""
    return table(
        ("Name", "Type", "Unit", "Labels", "Gate", "Meaning"),
        (
            (
                code(family.name),
                family.type,
                MEANINGS[family.name][0],
                codes(family.labels),
                codes(family.gates),
                sentence(MEANINGS[family.name][1]),
            )
            for family in families
        ),
    )
