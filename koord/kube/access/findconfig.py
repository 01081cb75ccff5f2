"""The API server to use: found in a kubeconfig, or in what Kubernetes gives to its pods."""

from collections.abc import Mapping
from pathlib import Path

from koord.kube.access.config import ApiConfig
from koord.kube.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def find_config(
    kubeconfig: str,
    environment: Mapping[str, str],
    *,
    home: Path,
    service_account: Path = SERVICE_ACCOUNT,
) -> ApiConfig | None:
    """Return the API server to use, or None when none is configured anywhere.

    The first of these that there is: the file (or list of files) named by a flag, those of
    KUBECONFIG, the service account of the pod we run in, .kube/config in the home directory.

    Raises:
        ConfigError: the first that there is cannot be used. No other is tried then: it would be
            another cluster or another user.
    """
    from koord.kube.access.kubeconfig import load, split_list  # may read YAML, which costs 2 MiB

    if kubeconfig:
        return load(split_list(kubeconfig), must_exist=True)
    listed = [path for path in split_list(environment.get("KUBECONFIG", "")) if path.exists()]
    if listed:
        return load(listed)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environment, service_account)
    default = home / ".kube" / "config"
    return load([default]) if default.exists() else None


def in_cluster(
    environment: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT
) -> ApiConfig:
    """Return the API server that a pod finds in its environment and service account.

    Raises:
        ConfigError: a part of that is missing.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port.isdecimal():
        raise ConfigError(
            "in-cluster configuration",
            wanted="KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
            found=f"{host!r} and {port!r}",
            hint="run as a pod, or name a kubeconfig with --kubeconfig",
        )
    for name in ("token", "ca.crt"):
        if not (service_account / name).exists():
            raise ConfigError(
                service_account / name,
                wanted="the service account's files",
                found="no such file",
                hint="set automountServiceAccountToken: true",
            )
    return ApiConfig(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        source="the pod's service account",
        ca=service_account / "ca.crt",
        token_file=service_account / "token",
        namespace=_namespace(service_account / "namespace"),
    )


def _namespace(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # only a default for others; requests do not need it
