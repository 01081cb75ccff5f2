"""The zones of a NodeResourceTopology as JSON, merged with the additions of other writers."""

from collections.abc import Iterable, Iterator, Mapping

from koord.api.quantity import Quantity
from koordlet.rules.zones import ZONE_TYPE, Zone

_AMOUNTS = ("capacity", "allocatable", "available")  # Koordinator's parts expect them to be equal


def same_zones(found: object, wanted: Iterable[Zone]) -> bool:
    """Whether exactly the wanted zones are there with their resources, in any order."""
    zones = {zone.name: zone for zone in wanted}
    items = list(_named(found))
    if not isinstance(found, list) or len(items) != len(found) or len(items) != len(zones):
        return False
    return {name for name, _ in items} == zones.keys() and all(
        item.get("type") == ZONE_TYPE and _has(item, zones[name]) for name, item in items
    )


def merged_zones(found: object, wanted: Iterable[Zone]) -> list[dict[str, object]]:
    """Return the wanted zones, each with the additions of others to the zone of its name."""
    zones = dict(_named(found))
    return [_merged(zones.get(zone.name, {}), zone) for zone in wanted]


def _merged(found: Mapping[str, object], zone: Zone) -> dict[str, object]:
    resources = dict(_named(found.get("resources"))) | {
        name: {"name": name} | dict.fromkeys(_AMOUNTS, str(amount))
        for name, amount in zone.resources.items()
    }
    return {
        **found,
        "name": zone.name,
        "type": ZONE_TYPE,
        "resources": [resources[name] for name in sorted(resources)],
    }


def _has(found: Mapping[str, object], zone: Zone) -> bool:
    resources = dict(_named(found.get("resources")))
    return all(
        name in resources and all(_is(resources[name].get(key), amount) for key in _AMOUNTS)
        for name, amount in zone.resources.items()
    )


def _is(found: object, amount: Quantity) -> bool:
    try:
        return Quantity.parse(found) == amount
    except ValueError:
        return False


def _named(items: object) -> Iterator[tuple[str, dict[str, object]]]:
    """The objects of a list by their names; those without a name are left out."""
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            yield item["name"], item
