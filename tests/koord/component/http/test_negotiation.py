"""Accept headers of real clients, and malformed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.http.endpoints import accepts_gzip, choose_format
from koord.component.http.exposition import OPENMETRICS, TEXT

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.3", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
    ],
)
def test_openmetrics_only_for_who_prefers_it(accept, form):
    """Clients that do not ask for OpenMetrics get text 0.0.4."""
    assert choose_format(accept) is form


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("GZIP", True),
        ("gzip;q=lots", False),
    ],
)
def test_gzip_only_for_who_accepts_it(accept_encoding, gzip):
    """A weight of 0 refuses, also when everything else is welcome."""
    assert accepts_gzip(accept_encoding) is gzip


@given(st.text(max_size=80))
def test_no_header_is_an_error(header):
    """Whatever a client sends, it gets a response."""
    assert choose_format(header) in (TEXT, OPENMETRICS)
    assert accepts_gzip(header) in (True, False)
