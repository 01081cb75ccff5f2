"""A scrape consists of the families that can be made."""

import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from koord.component.http.exposition import OPENMETRICS, TEXT, ScrapeBody
from koord.component.metrics import FamilyRules

RULES = FamilyRules(prefix="agent")
GOOD = GaugeMetricFamily("good", "Good.", value=1)


def family(name, labels, value=1.0):
    family = Metric(name, "Broken.", "gauge")
    family.add_sample(name, labels, value)
    return family


@pytest.mark.parametrize("form", [TEXT, OPENMETRICS])
@pytest.mark.parametrize(
    "broken",
    [
        family("label_value", {"a": 1}),
        family("number", {}, "many"),
    ],
    ids=lambda family: family.name,
)
def test_a_family_that_cannot_be_written_is_left_out_alone(form, broken):
    """Whatever a plugin puts into a family, its others are exported and the failure is reported."""
    failures = []
    page = ScrapeBody(form, RULES, lambda name, err: failures.append(name))

    page.add("plugin", lambda: [broken, GOOD], lambda _: True)

    assert failures == [broken.name]
    assert b"good 1.0\n" in page.body()
    assert broken.name not in page.body().decode()


def test_a_source_that_fails_halfway_adds_nothing():
    """Half of its families would look like the whole."""

    def make():
        yield GOOD
        raise RuntimeError("no more")

    failures = []
    page = ScrapeBody(TEXT, RULES, lambda name, err: failures.append((name, str(err))))

    page.add("plugin", make, lambda _: True)

    assert page.body() == b""
    assert failures == [("plugin", "no more")]


@pytest.mark.parametrize("sources", [[[GOOD, GOOD]], [[GOOD], [GOOD]]])
def test_a_name_is_taken_once(sources):
    """A scrape with a family twice is invalid; the first stays."""
    failures = []
    page = ScrapeBody(TEXT, RULES, lambda name, err: failures.append((name, str(err))))

    for families in sources:
        page.add("source", lambda families=families: families, lambda _: False)

    assert page.body().count(b"# TYPE good ") == 1
    assert failures == [("good", "metric family good is exported twice")]
