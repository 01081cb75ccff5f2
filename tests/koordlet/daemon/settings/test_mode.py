"""Standalone or cluster, host paths or container paths."""

import pytest

from koordlet.daemon.environment import detect_mode


@pytest.mark.parametrize(
    ("environ", "flag", "kubeconfig", "token", "standalone", "host_mode"),
    [
        ({}, None, "", False, True, True),
        ({"KUBECONFIG": "/k"}, None, "", False, False, False),
        ({}, None, "/k", False, False, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None, "", True, False, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None, "", False, True, True),
        ({"KUBECONFIG": "/k"}, True, "", False, True, True),
        ({}, False, "", False, False, False),
        ({"agent_mode": "hostMode", "KUBECONFIG": "/k"}, None, "", False, False, True),
        ({"agent_mode": "dsMode"}, None, "", False, True, False),
    ],
)
def test_mode(tmp_path, environ, flag, kubeconfig, token, standalone, host_mode):
    """No way to an API server means standalone, and standalone means host paths by default."""
    path = tmp_path / "token"
    if token:
        path.write_text("t")

    mode = detect_mode(environ, standalone=flag, kubeconfig=kubeconfig, token=path)

    assert (mode.standalone, mode.host_mode) == (standalone, host_mode)
    assert mode.reason


def test_home_kubeconfig_counts(tmp_path):
    """~/.kube/config is the last place Koordinator's client looks."""
    config = tmp_path / ".kube" / "config"
    config.parent.mkdir()
    config.write_text("{}")

    mode = detect_mode(
        {"HOME": str(tmp_path)}, standalone=None, kubeconfig="", token=tmp_path / "no"
    )

    assert not mode.standalone
