"""Amounts of resources: the short way for plain texts says what the long one does."""

from hypothesis import given
from hypothesis import strategies as st

from koord.api.pod import amount
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.pod_specs import MAX_AMOUNT, read_amounts

TEXTS = st.one_of(
    st.from_regex(r"[0-9]{1,20}(m|k|M|Ki|Mi|Gi|Ti|Ei|e3|)", fullmatch=True),
    st.text("0123456789mkKMGTi.+-e²٣ ", max_size=8),
)


@given(st.sampled_from(["cpu", "memory", "example.com/gpu"]), TEXTS)
def test_every_text_has_the_amount_of_its_quantity(name: str, text: str) -> None:
    """Or is left out as no quantity, or counts as the largest amount; both are noted."""
    try:
        wanted = amount(name, text)
    except ValueError:
        wanted = -1
    faults = DecodingFaults()
    found = read_amounts({name: text}, "it", faults)
    assert found == ({name: min(wanted, MAX_AMOUNT)} if wanted >= 0 else {})
    assert [one.startswith(f"it: {name}: ") for one in faults] == [True] * (
        not 0 <= wanted < MAX_AMOUNT
    )
