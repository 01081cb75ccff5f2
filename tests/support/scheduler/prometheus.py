"""What Prometheus answers."""

from typing import Any

from tests.support.http_site import ScriptedSite


def vector(*series: tuple[dict[str, str], Any], **more: Any) -> dict[str, Any]:
    """A response of Prometheus to an instant query."""
    result = [{"metric": metric, "value": [1.5, str(value)]} for metric, value in series]
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **more}


def queries(site: ScriptedSite) -> list[str]:
    """The queries that it was asked."""
    return [one.query["query"] for one in site.requests]
