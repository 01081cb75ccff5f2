"""The API server, as tests ask it that look often: without kubectl, and while it may be away."""

import json
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from tests.support.real_cluster.access import ADMIN, SERVER
from tests.support.real_cluster.client import Object

_TIMEOUT = 10.0  # seconds for one response


class Api:
    """The API server, as its admin asks it; it may be away."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / f"access/{ADMIN.name}.kubeconfig").read_text())
        self._token = config["users"][0]["user"]["token"]
        file = config["clusters"][0]["cluster"]["certificate-authority"]
        self._trust = ssl.create_default_context(cafile=file)

    def ask(self, path: str, method: str = "GET", body: Object | None = None) -> Object | None:
        """Return the response, also a refusal; None: there is none."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            SERVER + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self._token}", "Content-Type": kind},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT, context=self._trust) as answer:
                found: Object = json.load(answer)
        except urllib.error.HTTPError as err:
            return {"code": err.code}
        except (OSError, HTTPException, ValueError):
            return None
        return found

    def items(self, path: str) -> list[Object] | None:
        """Return the objects of a list; None: no response, or a refusal."""
        found = self.ask(path) or {}
        listed: list[Object] | None = found.get("items")
        return listed
