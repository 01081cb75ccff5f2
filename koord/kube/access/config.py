"""The address of one API server and the credentials of one user."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Material = Path | bytes
"""A certificate or key: a file that may be replaced at any time, or PEM text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (client.authentication.k8s.io)."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None  # added to ours
    install_hint: str = ""
    cluster: Mapping[str, object] | None = None  # the facts of the cluster that it gets, if it asks


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiConfig:
    """One API server and one user. Without a CA the system's certificates decide."""

    server: str  # for example https://10.96.0.1:443
    source: str  # where this was found, for messages
    ca: Material | None = None
    verify: bool = True
    tls_server_name: str = ""  # "" for the name in server
    proxy_url: str = ""
    token: str = ""
    token_file: Path | None = None  # goes before token
    certificate: Material | None = None
    key: Material | None = None
    exec_plugin: ExecPlugin | None = None
    namespace: str = ""
    server_setting: str = "server"  # names of the settings in source, for messages
    verify_setting: str = "insecure-skip-tls-verify"

    def unverified(self) -> str:
        """The name of the setting for which nobody verifies the server; "": it is verified."""
        if not self.server.startswith("https:"):
            return self.server_setting
        return "" if self.verify else self.verify_setting
