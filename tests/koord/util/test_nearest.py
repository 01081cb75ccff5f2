"""The name a user probably meant."""

import pytest

from koord.util.text import nearest


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("feature-gate", ["feature-gates", "addr"], "feature-gates"),
        ("cpuburst", ["CPUBurst", "CPUEvict"], "CPUBurst"),
        ("zzz", ["addr"], "addr"),
        ("x", [], ""),
    ],
)
def test_nearest(typed, known, meant):
    """Case does not count, and there is always a response when there is any name."""
    assert nearest(typed, known) == meant
