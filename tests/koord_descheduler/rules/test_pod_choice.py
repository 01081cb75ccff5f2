"""Which pods the arguments of a plugin choose."""

import pytest

from koord.api.labelselector import LabelSelector
from koord_descheduler.config import Namespaces, PodSelector
from koord_descheduler.rules.evictorfilter import not_selected
from tests.support.descheduler.framework import make_pod

SHOP = PodSelector(name="shop", selector=LabelSelector({"app": "shop"}))
BANK = PodSelector(name="bank", selector=LabelSelector({"app": "bank"}))
NAMESPACE = "its namespace default is not among evictableNamespaces"
LABELS = "no podSelector matches its labels"


@pytest.mark.parametrize(
    ("namespaces", "selectors", "reason"),
    [
        (None, (), ""),
        (Namespaces(), (), ""),
        (Namespaces(include=("default",)), (), ""),
        (Namespaces(include=("other",)), (), NAMESPACE),
        (Namespaces(exclude=("other",)), (), ""),
        (Namespaces(exclude=("default",)), (SHOP,), NAMESPACE),
        (None, (SHOP,), ""),
        (None, (BANK, SHOP), ""),
        (None, (BANK,), LABELS),
        (None, (PodSelector(name="empty"),), ""),  # is ignored: all labels will do
        (None, (PodSelector(name="empty"), BANK), LABELS),
    ],
)
def test_namespaces_first_then_any_of_the_selectors(namespaces, selectors, reason) -> None:
    assert not_selected(namespaces, selectors)(make_pod(labels={"app": "shop"})) == reason
