"""Amounts of resources: the short way for plain texts says what the long one does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.pods.requests import amount
from koord.cluster.podspecs import LARGEST_AMOUNT, read_amounts
from koord.util.errors import InvalidObject

TEXTS = st.one_of(
    st.from_regex(r"[0-9]{1,20}(m|k|M|Ki|Mi|Gi|Ti|Ei|e3|)", fullmatch=True),
    st.text("0123456789mkKMGTi.+-e²٣ ", max_size=8),
)


@given(st.sampled_from(["cpu", "memory", "example.com/gpu"]), TEXTS)
def test_every_text_has_the_amount_of_its_quantity(name: str, text: str) -> None:
    """Or is refused as no quantity, or as too large."""
    try:
        wanted = amount(name, text)
    except ValueError:
        wanted = -1
    if 0 <= wanted <= LARGEST_AMOUNT:
        assert read_amounts({name: text}, "it") == {name: wanted}
    else:
        with pytest.raises(InvalidObject, match=f"it: {name}: wanted"):
            read_amounts({name: text}, "it")
