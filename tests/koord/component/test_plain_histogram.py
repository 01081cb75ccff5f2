"""The plain histogram exports what prometheus_client's does."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.samples import Sample

from koord.component.metrics import PlainHistogram

BOUNDS = (0.1, 0.5, 2.0)


def samples(registry: CollectorRegistry) -> list[Sample]:
    """All samples, without the times at which series were created, which the plain one has not."""
    found = [sample for family in registry.collect() for sample in family.samples]
    return [sample for sample in found if not sample.name.endswith("_created")]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Filter", "Score"]),
            st.sampled_from([*BOUNDS, 0.0, 0.3, 7.0]) | st.floats(0, 10),
        )
    )
)
def test_it_exports_what_the_library_histogram_does(seen: list[tuple[str, float]]) -> None:
    """Buckets, count and sum, by labels; a value on a bound is within it."""
    library, plain = CollectorRegistry(), CollectorRegistry()
    facts = "run_seconds", "Time of a run.", ["point"]
    first = Histogram(*facts, buckets=BOUNDS, registry=library)
    second = PlainHistogram(*facts, buckets=BOUNDS, registry=plain)
    for point, seconds in seen:
        first.labels(point).observe(seconds)
        second.labels(point)(seconds)
    assert samples(plain) == samples(library)


def test_without_labels_there_is_one_series() -> None:
    """It is there from the first observation on."""
    registry = CollectorRegistry()
    PlainHistogram("run_seconds", "Time.", buckets=BOUNDS, registry=registry).labels()(0.2)
    assert registry.get_sample_value("run_seconds_bucket", {"le": "0.5"}) == 1
    assert registry.get_sample_value("run_seconds_sum") == 0.2
