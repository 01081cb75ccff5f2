"""The patches of kustomize components, as conditions in the objects that they patch."""

from typing import Any

import yaml

from reference.chart.template import Either, When


class UnknownPatch(Exception):
    """A component does what the chart has no form for yet."""


def patch(objects: list[dict[str, Any]], component: dict[str, Any], condition: str) -> None:
    """Put the patches of a component into the objects, each on that condition.

    Raises:
        UnknownPatch: a patch has another form, or is for an object that is not there.
    """
    for each in component.get("patches", ()):
        target = each["target"]
        found = [o for o in objects if (o["kind"], o["metadata"]["name"]) == tuple(target.values())]
        if len(found) != 1:
            raise UnknownPatch(f"wanted one object to patch, found {len(found)}: {target}")
        for operation in yaml.safe_load(each["patch"]):
            _apply(found[0], operation, condition)


def _apply(tree: Any, operation: dict[str, Any], condition: str) -> None:
    kind, path = operation["op"], operation["path"].split("/")[1:]
    parent, last = _at(tree, path[:-1]), path[-1]
    match kind:
        case "test":
            if _at(tree, path) != operation["value"]:
                raise UnknownPatch(f"wanted {operation}, found {_at(tree, path)!r}")
        case "add" if last == "-":
            parent.append(When(condition, operation["value"]))
        case "add" if isinstance(parent, dict) and last not in parent:
            parent[last] = When(condition, operation["value"])
        case "replace" if isinstance(parent, dict) and _is_scalar(parent.get(last)):
            parent[last] = Either(condition, operation["value"], parent[last])
        case "remove" if isinstance(parent, list):
            parent[int(last)] = When(f"not {condition}", parent[int(last)])
        case _:
            raise UnknownPatch(f"wanted an addition, a scalar or a list item, found {operation}")


def _at(tree: Any, path: list[str]) -> Any:
    for name in path:
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
        if isinstance(tree, When):
            tree = tree.value
    return tree


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | bool)
