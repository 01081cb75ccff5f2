"""What the API server's audit log says of the daemons' own requests."""

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

from tests.support.real_apiserver.rights import Right, allows, rights_of
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import NAMESPACES, SYSTEM, Cluster, Object

_BEGINNING = datetime.fromtimestamp(0, UTC)


def requests(cluster: Cluster, daemon: str) -> Iterator[Object]:
    """What a daemon asked of the API server itself, with the token of its pod.

    Without what koordletctl doctor tries, which is to be refused and changes nothing.
    """
    namespace = NAMESPACES.get(daemon, SYSTEM)
    for line in (cluster.directory / "audit.log").read_text().splitlines():
        entry = json.loads(line)
        its_own = entry["user"].get("username") == f"system:serviceaccount:{namespace}:{daemon}"
        its_own = its_own and entry.get("userAgent", "").startswith(daemon)
        if its_own and "dryRun=" not in entry["requestURI"] and "objectRef" in entry:
            yield entry


def forbidden(cluster: Cluster, daemon: str, since: datetime = _BEGINNING) -> list[str]:
    """What RBAC or an admission policy refused it."""
    return [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in requests(cluster, daemon)
        if entry.get("responseStatus", {}).get("code") in (401, 403) and _time(entry) > since
    ]


def right_of(entry: Object) -> Right:
    """What a request needed."""
    asked = entry["objectRef"]
    part = f"/{asked['subresource']}" if "subresource" in asked else ""
    query = parse_qs(urlsplit(entry["requestURI"]).query)
    name, _, value = query.get("fieldSelector", [""])[0].partition("=")
    selected = value if name == "metadata.name" else ""
    return Right(
        entry["verb"],
        asked.get("apiGroup", ""),
        asked["resource"] + part,
        asked.get("name", selected),
    )


def held_and_unused(cluster: Cluster, daemon: str) -> tuple[set[Right], set[Right]]:
    """Return the rights that a daemon holds, and those of them that no request needed."""
    namespace = NAMESPACES.get(daemon, SYSTEM)
    roles = [cluster.find("clusterrole", daemon), cluster.find("role", daemon, "-n", namespace)]
    held = {right for role in roles for right in rights_of(role.get("rules", ()))}
    used = {right_of(entry) for entry in requests(cluster, daemon)}
    return held, {one for one in held if not any(allows(one, each) for each in used)}


def longest_gap(cluster: Cluster, since: datetime) -> float:
    """Seconds between two reports of the real node, of which the second came after a time."""
    times = [
        _time(entry)
        for entry in requests(cluster, "koordlet")
        if (asked := entry["objectRef"])["resource"] == "nodemetrics"
        and asked.get("subresource") == "status"
        and asked["name"] == NODE
        and entry["responseStatus"]["code"] == 200
    ]
    gaps = [after - before for before, after in itertools.pairwise(times) if after > since]
    return max(gap.total_seconds() for gap in gaps)


def _time(entry: Object) -> datetime:
    return datetime.fromisoformat(entry["requestReceivedTimestamp"])
