"""The text formats, checked with the parsers that Prometheus' own client ships."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, Summary
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, UnknownMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from koord.component.http.exposition import OPENMETRICS, TEXT

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}x", fullmatch=True)
VALUES = st.floats() | st.integers(min_value=-(2**53), max_value=2**53)


def render(form, families, unsuffixed_counters=()) -> str:
    encoded = (
        form.encode(family, unsuffixed_counter=family.name in unsuffixed_counters)
        for family in families
    )
    return b"".join([*encoded, form.end]).decode()


def typical_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("rounds_total", "Rounds.", ["outcome"], registry=registry).labels("ok").inc(3)
    Gauge("temperature", 'It says "hot"\\\nor not.', registry=registry).set(-0.5)
    Histogram("lag_seconds", "Lag.", buckets=(0.1, 1), registry=registry).observe(0.3)
    Summary("took_seconds", "Took.", registry=registry).observe(2)
    return registry


def without_created(text: str, timestamps: str = "_created") -> list[str]:
    return [line for line in text.splitlines() if timestamps not in line]


def test_text_has_no_creation_times():
    """Everything prometheus_client writes, but for the _created series."""
    registry = typical_registry()

    ours = render(TEXT, registry.collect())

    assert ours.splitlines() == without_created(generate_latest(registry).decode())


def test_openmetrics_has_no_creation_times():
    """Also in OpenMetrics, down to the end marker."""
    registry = typical_registry()

    ours = render(OPENMETRICS, registry.collect())

    assert ours.splitlines() == without_created(generate_openmetrics(registry).decode())


@pytest.mark.parametrize("kind", ["counter", "unknown"])
def test_unsuffixed_counters_keep_their_names(kind):
    """Koordinator's koordlet_pod_eviction: a counter in text 0.0.4, else unknown, never _total."""
    family = Metric("koordlet_pod_eviction", "Evictions.", kind)
    family.add_sample("koordlet_pod_eviction", {"reason": "evicted"}, 2)

    text = render(TEXT, [family], {"koordlet_pod_eviction"})
    openmetrics = render(OPENMETRICS, [family], {"koordlet_pod_eviction"})

    assert "# TYPE koordlet_pod_eviction counter\n" in text
    assert "# TYPE koordlet_pod_eviction unknown\n" in openmetrics
    assert 'koordlet_pod_eviction{reason="evicted"} 2.0\n' in text
    assert "_total" not in text + openmetrics
    assert [f.name for f in parse_openmetrics(openmetrics)] == ["koordlet_pod_eviction"]


def test_info_and_timestamps_differ_between_the_formats():
    """An info becomes a gauge in text; times are milliseconds there and seconds in OpenMetrics."""
    info = InfoMetricFamily("build", "Build.", value={"version": "1"})
    gauge = GaugeMetricFamily("g", "G.", labels=["a"])
    gauge.add_metric(["b"], 1, timestamp=1700000000.5)

    text = render(TEXT, [info, gauge])
    openmetrics = render(OPENMETRICS, [info, gauge])

    assert '# TYPE build_info gauge\nbuild_info{version="1"} 1.0\n' in text
    assert 'g{a="b"} 1.0 1700000000500\n' in text
    assert "# TYPE build info\n" in openmetrics
    assert 'g{a="b"} 1.0 1700000000.5\n' in openmetrics


@given(NAMES, TEXTS, st.dictionaries(NAMES, TEXTS, max_size=3), VALUES)
def test_what_is_written_is_what_is_read(name, documentation, labels, value):
    """Any help text, label value and number survives the way through both formats."""
    family = UnknownMetricFamily(name, documentation)
    family.add_sample(name, labels, value)

    for form, parse in ((TEXT, parse_text), (OPENMETRICS, parse_openmetrics)):
        (read,) = parse(render(form, [family]))
        (sample,) = read.samples
        assert (sample.name, sample.labels) == (name, labels)
        assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))
