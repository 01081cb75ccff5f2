"""The mode of the daemon: standalone or in a cluster, with host paths or container paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, slots=True)
class Mode:
    """The two choices everything else follows from, and why they were made."""

    standalone: bool  # no API server: states come from files and from the cgroup tree
    host_mode: bool  # paths as on the host; otherwise as Koordinator's DaemonSet mounts them
    reason: str


def detect_mode(
    environ: Mapping[str, str],
    *,
    standalone: bool | None,
    kubeconfig: str,
    token: Path = IN_CLUSTER_TOKEN,
) -> Mode:
    """Decide the mode; standalone is the flag's value, None when it was not given.

    Without the flag the daemon stands alone when there is no way to an API server: no kubeconfig
    (flag, KUBECONFIG, ~/.kube/config) and no in-cluster token. agent_mode=hostMode, as in
    Koordinator, asks for host paths; a standalone daemon uses them unless agent_mode says else.
    """
    agent_mode = environ.get("agent_mode", "")
    if standalone is None:
        found = _api_access(environ, kubeconfig, token)
        standalone, reason = not found, found or "no kubeconfig and no in-cluster token"
    else:
        reason = f"--standalone={str(standalone).lower()}"
    host_mode = agent_mode == "hostMode" or (standalone and not agent_mode)
    return Mode(standalone, host_mode, reason)


def _api_access(environ: Mapping[str, str], kubeconfig: str, token: Path) -> str:
    """Return the way to an API server, in the order of Koordinator's client; "": there is none."""
    if kubeconfig:
        return f"--kubeconfig={kubeconfig}"
    if environ.get("KUBECONFIG"):
        return f"KUBECONFIG={environ['KUBECONFIG']}"
    if environ.get("KUBERNETES_SERVICE_HOST") and token.exists():
        return f"in-cluster token {token}"
    home = Path(environ.get("HOME", "/nonexistent")) / ".kube" / "config"
    return str(home) if home.exists() else ""
