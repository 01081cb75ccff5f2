"""Who may talk to whom in the cluster: its CA, certificates, and a token for each user."""

import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kube.certificates import Authority, Pair

SERVICE_IP = "10.96.0.1"  # of the Service "kubernetes", on the loopback interface
NODE_IP = "10.77.0.1"  # of the real node and of the control plane on it, likewise
NODE = "worker-1"  # the real node
SERVER = f"https://{SERVICE_IP}"
_DAYS = 30


@dataclass(frozen=True, slots=True)
class User:
    """A user with a token."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = User("admin", ("system:masters",))
CONTROLLERS = User("system:kube-controller-manager")
SCHEDULER = User("system:kube-scheduler")
KUBELET = User(f"system:node:{NODE}", ("system:nodes",))
STAND_IN = User("stand-in-for-kubelets", ("system:masters",))
_USERS = (ADMIN, CONTROLLERS, SCHEDULER, KUBELET, STAND_IN)


class Access:
    """The files of all that, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority = Authority(directory, "koord-cluster", days=_DAYS)
        self.ca, self.ca_key = self._authority.certificate, self._authority.key
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        self.api_server = self._issue("kube-apiserver", (SERVICE_IP, NODE_IP, *names))
        self.kubelet = self._issue(NODE, (NODE_IP, NODE))
        self.kubelet_client = self._issue("kube-apiserver-kubelet-client", (), ADMIN.groups[0])
        self.service_accounts = directory / "service-accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", self.service_accounts, "2048"],
            check=True,
            capture_output=True,
        )
        self.tokens = directory / "tokens.csv"
        self._directory = directory
        tokens = {user: secrets.token_urlsafe(24) for user in _USERS}
        self._write_tokens(tokens)
        for user, token in tokens.items():
            self.kubeconfig(user).write_text(json.dumps(self._kubeconfig(user, token), indent=1))

    def kubeconfig(self, user: User) -> Path:
        """The file with which a user comes in."""
        return self._directory / f"{user.name.replace(':', '-')}.kubeconfig"

    def _issue(self, name: str, hosts: tuple[str, ...], group: str = "") -> Pair:
        hosts = hosts or ("127.0.0.1",)
        return self._authority.issue(name, hosts=hosts, days=_DAYS, group=group)

    def _write_tokens(self, tokens: Mapping[User, str]) -> None:
        """As kube-apiserver reads them: token, user, uid, groups."""
        lines = [
            f'{token},{user.name},{number},"{",".join(user.groups)}"\n'
            for number, (user, token) in enumerate(tokens.items())
        ]
        self.tokens.write_text("".join(lines))

    def _kubeconfig(self, user: User, token: str) -> dict[str, Any]:
        cluster = {"server": SERVER, "certificate-authority": str(self.ca)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": user.name, "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": user.name}}],
        }
