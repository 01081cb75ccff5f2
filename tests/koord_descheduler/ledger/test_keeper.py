"""The ledger in the API: two leaders in turn, conflicts, faults, and content that is malformed."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from koord.kube.client import CONFIG_MAPS, ApiClient
from koord.util.health import HealthStatus
from koord.util.stop import Stop
from koord_descheduler.ledger.ledger import ASIDE, KEY, NAME, LedgerStore
from tests.support.descheduler.ledger import FOR_LOAD, LedgerKit
from tests.support.kube.apiserver import ApiServer, status

NAMESPACE = "koordinator-system"
PASS = Callable[..., Any]


def keeper_of(kit: LedgerKit, client: ApiClient) -> LedgerStore:
    return LedgerStore(kit.ledger, client, NAMESPACE, kit.clock, kit.metrics)


def kept(server: ApiServer) -> dict[str, str]:
    found = server.objects.get(CONFIG_MAPS.collection(), f"{NAMESPACE}/{NAME}")["data"]
    assert isinstance(found, dict)
    return found


def writes(server: ApiServer) -> int:
    return len(server.asked("create")) + len(server.asked("update"))


def put(server: ApiServer, **data: str) -> None:
    item = {"metadata": {"namespace": NAMESPACE, "name": NAME}, "data": data}
    server.objects.create(CONFIG_MAPS.collection(), item)


async def test_two_leaders_in_turn(
    kit: LedgerKit, server: ApiServer, client: ApiClient, pass_time: PASS
) -> None:
    """The first one's eviction is measured by the second, and its pause holds at the third."""
    stop = Stop(kit.clock)
    keeper = keeper_of(kit, client)
    await keeper.load()
    running = asyncio.create_task(keeper.run(stop))
    pod = kit.pod("web-1", workload="web")
    kit.cluster.report()
    kit.evict(pod)
    await pass_time(lambda: writes(server) == 1)
    assert json.loads(kept(server)[KEY])["entries"][0]["pod"] == "default/web-1"
    kit.gone(pod)
    kit.ledger.changed = True
    stop.set()
    await running  # writes once more

    second = LedgerKit(kit.clock)
    keeper = keeper_of(second, client)
    await keeper.load()
    assert second.outcomes() == ["pending"]
    second.pod("web-2", workload="web")
    second.after(20)
    assert second.outcomes() == ["returned"]
    await keeper.save()

    third = LedgerKit(kit.clock)
    await keeper_of(third, client).load()
    assert third.reject_reason(third.pod("web-3", node="n2", workload="web"))


async def test_what_has_not_changed_is_not_written(
    kit: LedgerKit, server: ApiServer, client: ApiClient, pass_time: PASS
) -> None:
    """And many evictions between two rounds are one write."""
    stop = Stop(kit.clock)
    keeper = keeper_of(kit, client)
    await keeper.load()
    running = asyncio.create_task(keeper.run(stop))
    began = kit.clock.monotonic()
    await pass_time(lambda: kit.clock.monotonic() > began + 60)
    assert writes(server) == 0
    for number in range(20):
        kit.evict(kit.pod(f"p{number}", node="n9"))
    await pass_time(lambda: kit.clock.monotonic() > began + 120)
    stop.set()
    await running

    assert writes(server) == 1
    assert keeper.health().status is HealthStatus.OK


async def test_a_conflict_makes_one_ledger_of_both(
    kit: LedgerKit, server: ApiServer, client: ApiClient
) -> None:
    """Whoever was faster is not overwritten."""
    mine, other = keeper_of(kit, client), LedgerKit(kit.clock)
    await mine.load()
    theirs = keeper_of(other, client)
    await theirs.load()
    kit.evict(kit.pod("web-1", workload="web"))
    other.evict(other.pod("db-1", workload="db"))
    await theirs.save()
    await mine.save()
    await mine.save()

    pods = {entry["pod"] for entry in json.loads(kept(server)[KEY])["entries"]}
    assert pods == {"default/web-1", "default/db-1"}
    assert kit.reject_reason(kit.pod("db-2", node="n2", workload="db"))


async def test_a_deleted_config_map_is_created_again(
    kit: LedgerKit, server: ApiServer, client: ApiClient
) -> None:
    """With what this leader knows."""
    keeper = keeper_of(kit, client)
    kit.evict(kit.pod("web-1", workload="web"))
    await keeper.save()
    server.objects.delete(CONFIG_MAPS.collection(), f"{NAMESPACE}/{NAME}")
    kit.evict(kit.pod("db-1", workload="db"))
    await keeper.save()

    assert len(json.loads(kept(server)[KEY])["entries"]) == 2


@pytest.mark.parametrize("text", ["{", '{"version": 7}', "\x00", "[]"])
async def test_malformed_content_is_kept_aside(
    kit: LedgerKit, server: ApiServer, client: ApiClient, text: str
) -> None:
    """The ledger begins empty, and nothing of what was there is lost."""
    put(server, **{KEY: text})
    keeper = keeper_of(kit, client)
    await keeper.load()
    assert kit.ledger.entries == ()
    kit.evict(kit.pod("web-1", workload="web"))
    await keeper.save()

    assert kept(server)[ASIDE] == text
    assert len(json.loads(kept(server)[KEY])["entries"]) == 1


@pytest.mark.parametrize("data", [None, [], {"ledger.json": 7}, {"other": "x"}])
async def test_a_config_map_without_a_ledger_is_an_empty_one(
    kit: LedgerKit, server: ApiServer, client: ApiClient, data: object
) -> None:
    """What else it holds stays, if it is text."""
    item = {"metadata": {"namespace": NAMESPACE, "name": NAME}, "data": data}
    server.objects.create(CONFIG_MAPS.collection(), item)
    keeper = keeper_of(kit, client)
    await keeper.load()
    kit.evict(kit.pod("web-1", workload="web"))
    await keeper.save()

    assert len(json.loads(kept(server)[KEY])["entries"]) == 1


@pytest.mark.parametrize("code", [403, 500])
async def test_without_the_api_the_ledger_goes_on_in_memory(
    kit: LedgerKit, server: ApiServer, client: ApiClient, code: int
) -> None:
    """Health says so. When the API is back, what is there is read before anything is written."""

    async def refuse(request: Any) -> Any:
        return status(code, "Refused")

    put(server, **{KEY: '{"version": 1}'})
    server.script(*[refuse] * 10)
    keeper = keeper_of(kit, client)
    await keeper.load()
    pod = kit.pod("web-1", workload="web")
    kit.evict(pod)
    await keeper.save()
    assert keeper.health().status is HealthStatus.DEGRADED
    assert kit.reject_reason(pod)
    assert kit.ledger.changed

    server.unscript()
    await keeper.save()
    assert keeper.health().status is HealthStatus.OK
    assert len(json.loads(kept(server)[KEY])["entries"]) == 1


async def test_only_what_the_role_allows_is_asked(
    kit: LedgerKit, server: ApiServer, client: ApiClient
) -> None:
    """get and update of one ConfigMap by its name, create in its namespace."""
    keeper = keeper_of(kit, client)
    await keeper.load()
    for number in range(3):
        kit.evict(kit.pod(f"web-{number}", workload="web"), FOR_LOAD)
        await keeper.save()

    asked = {(entry.verb, entry.path) for entry in server.requests}
    one = CONFIG_MAPS.object(NAME, namespace=NAMESPACE)
    assert asked == {("get", one), ("update", one), ("create", CONFIG_MAPS.collection(NAMESPACE))}
