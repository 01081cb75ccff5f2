"""The latest prediction as Prometheus families; names and labels are Koordinator's."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric

from koord.api.amounts import Amounts
from koord.api.nodemetric import ProdPrediction
from koord.api.priority import PriorityClass
from koordlet.collectors.engine.exposition import LabelledValue, gauge

_Rows = Iterable[tuple[str, Amounts | None]]


def prediction_families(
    node: str, predictions: Mapping[str, ProdPrediction], result: Amounts | None
) -> Iterator[Metric]:
    """Return the families of predictions by predictor, and of what prod pods leave to others."""
    prod = PriorityClass.PROD.value
    yield _family(
        "koordlet_node_predicted_resource_reclaimable",
        "What prod pods asked for and others may have",
        "predictor",
        _values(node, ((name, one.reclaimable) for name, one in predictions.items())),
    )
    yield _family(
        "koordlet_node_predicted_resource_peak",
        "The most that the system and prod pods will use, margin included",
        "predictor",
        _values(node, ((name, one.peak) for name, one in predictions.items())),
    )
    yield _family(
        "koordlet_node_priority_resource_reclaimable",
        "What the class asked for and others may have; 0 without a prediction",
        "priority",
        _values(node, [(prod, result or Amounts())]),
    )
    yield gauge(
        "koordlet_node_resource_priority_reclaimable_status",
        "Whether the latest report had a prediction: 0 yes, 1 no.",
        ("node", "priority"),
        [((node, prod), 0 if result is not None else 1)],
    )


def _family(name: str, subject: str, label: str, rows: Iterable[LabelledValue]) -> Metric:
    text = f"{subject}: CPU in cores, memory in bytes."
    return gauge(name, text, ("node", label, "resource", "unit"), rows)


def _values(node: str, rows: _Rows) -> Iterator[LabelledValue]:
    for name, amounts in rows:
        if amounts is not None:
            yield (node, name, "cpu", "core"), amounts.milli_cores / 1000
            yield (node, name, "memory", "byte"), amounts.memory_bytes
