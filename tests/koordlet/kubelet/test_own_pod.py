"""The agent's own pod, by its token."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.credentials import ApiConfig
from koordlet.kubelet import own_pod_uid, pod_uid


def jwt(claims: Any) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{payload}.c2lnbmF0dXJl"


BOUND = jwt({"kubernetes.io": {"namespace": "s", "pod": {"name": "k", "uid": "abc-ü"}}})


def test_a_bound_token() -> None:
    """As the kubelet puts it into every pod."""
    assert pod_uid(BOUND) == "abc-ü"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "static",
        "a.b.c",
        "a.!!!.c",
        jwt({}),
        jwt([]),
        jwt({"kubernetes.io": {}}),
        jwt({"kubernetes.io": {"pod": None}}),
        jwt({"kubernetes.io": {"pod": {"uid": 1}}}),
        jwt({"kubernetes.io/serviceaccount/namespace": "s"}),  # of an old Secret
        "a." + base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".c",
    ],
)
def test_any_other_token(token: str) -> None:
    """Is bound to no pod."""
    assert pod_uid(token) == ""


@given(st.text())
def test_no_token_is_an_error(token: str) -> None:
    """A file may hold anything."""
    assert isinstance(pod_uid(f"a.{token}.c"), str)


def test_where_the_token_is(tmp_path) -> None:
    """In a file that others replace, in the kubeconfig, or nowhere."""
    file = tmp_path / "token"
    file.write_text(BOUND)
    at = {"server": "https://a", "source": "test"}

    assert own_pod_uid(ApiConfig(**at, token_file=file)) == "abc-ü"
    assert own_pod_uid(ApiConfig(**at, token=BOUND)) == "abc-ü"
    assert own_pod_uid(ApiConfig(**at, token_file=tmp_path / "none")) == ""
    assert own_pod_uid(ApiConfig(**at)) == ""
