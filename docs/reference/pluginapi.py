"""docs/plugin-api.md."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

import koord.plugin as shared
import koordlet.plugin as api
from koordlet.executor.claims.table import claimable_levels, is_writable
from koordlet.host import resources
from koordlet.host.cgroups.keyed_files import DeviceLimits
from koordlet.host.resource import File, InRange, ObjectKind, Resource, Root
from koordlet.metriccache import kinds
from koordlet.metriccache.keys import Property
from koordlet.metriccache.kinds import KINDS, Cadence, RetentionClass
from koordlet.plugin import kernel, metrics, network, pods, testing
from reference.markdown import code, codes, page, sentence, table

_INTRO = """
What a plugin may import, measure and claim. [Writing a plugin](writing-plugins.md) is the
tutorial.
"""
_KINDS = """
Constants of `koordlet.plugin.kinds`. A series is a kind and a key, one value per property, in this
order or by name: `cache.last(kinds.NODE_PSI, "io", "10", "some")`. A kind without properties has
one series, that of the node. A property or value that does not exist raises `keys.UnknownSeries`.
`koordletctl metrics` shows the same kinds by their names.
"""
_PROPERTIES = "Properties of keys, and all values that one may have where these are known."
_CLAIMABLE = """
Constants of `koordlet.plugin.resources` that `claim` takes, on the levels of `Level`. A cgroup's
file is named with the directory of the cgroup left out; `{}` is the pid. A version without a file
does not have the value: the claim's outcome is `unsupported`, as where what it needs is missing.
What the column "Takes" does not allow is refused before the kernel is asked; where -1 is no limit,
it is taken, too. `SCHED_FEATURE["NAME"]` is a row for each of {features}.
"""
_READABLE = """
These can be looked at with `self.kernel.read`, beside those above; `{}` is its second argument, a
pid or the number of a NUMA node. What koordlet measures is cheaper to have from the metric cache.
"""
_NAMES = "All that `koordlet.plugin` exports. Of koordlet, this and what follows is for plugins."
_MODULES = {
    "## Names for plugins of all daemons": shared,
    "## Names for claims, kernel values and storage": kernel,
    "## Names for metrics": metrics,
    "## Names for pods": pods,
    "## Names for network interfaces": network,
    "## The test kit": testing,
}
_CADENCES = {
    Cadence.USAGE: "--collect-res-used-interval",
    Cadence.PSI: "--psi-collector-interval",
    Cadence.NETWORK: "--network-collector-interval",
    Cadence.CPI: "--cpi-collector-interval",
    Cadence.COLD_PAGE: "--coldpage-collector-interval",
    Cadence.RESCTRL: "--resctrl-collector-interval",
}
_KEEPS = {RetentionClass.NODE: "30 minutes", RetentionClass.POD: "5 minutes"}
_ROOTS = {
    Root.CGROUP: "",
    Root.PROC: "/proc/",
    Root.SYS: "/sys/",
    Root.RESCTRL: "/sys/fs/resctrl/",
}
_WITHOUT_DOCSTRING = {
    "Address": "An IPv4Address or IPv6Address",
    "NODE_FILE": "The file of terway-qos with the rates of the node and its classes",
    "PODS_FILE": "The file of terway-qos with the pods",
    "MAJOR": "What a class's number is added to, for the priority of packets that go there",
    "NODE_LOCAL_STORAGE": "The name of the node's LocalStorage in the metric cache",
    "WAITS_FOR_EVENTS": "Limits of a plugin whose run only waits, without rounds",
    "OK": "The HealthStatus of a part that is well",
}
# What a plugin calls on what it is given; all public methods where none are named.
_MEMBERS: dict[str, tuple[str, ...]] = {
    "ExtensionPlugin": (),
    "MetricCache": (
        "last",
        "last_values",
        "newest",
        "aggregate",
        "aggregate_all",
        "series",
        "keys",
        "match",
        "interval",
    ),
    "States": (),
    "Kernel": (),
    "Client": (),
    "Stop": ("every", "sleep", "wait", "is_set", "bound"),
    "FlagSet": ("bool", "int", "float", "string", "duration", "bool_map", "string_list"),
    "PluginMetrics": ("counter", "gauge", "histogram", "upstream_gauge"),
}


def plugin_api_page() -> str:
    """The whole page."""
    members = ((f"### {name}", _members(_exported(name), _MEMBERS[name])) for name in _MEMBERS)
    return page(
        "Plugin reference",
        _INTRO,
        "## Metric kinds",
        _KINDS,
        _kinds(),
        _PROPERTIES,
        _properties(),
        "## Values that can be claimed",
        _CLAIMABLE.replace("{features}", codes(resources.SCHED_FEATURE)),
        _resources(filter(is_writable, resources.BY_NAME.values()), _claimable_row, _CLAIM_HEAD),
        "## Values that can be read",
        _READABLE,
        _resources(
            (row for row in resources.BY_NAME.values() if not is_writable(row)), _row, _READ_HEAD
        ),
        "## Methods",
        *(part for pair in members for part in pair),
        "## Names",
        _NAMES,
        _names(api),
        *(
            part
            for head, module in _MODULES.items()
            for part in (head, _charter(module), _names(module))
        ),
        "### PluginHarness",
        _members(testing.PluginHarness, ()),
    )


def _exported(name: str) -> type:
    """Return a class that plugins can import."""
    found: type = next(vars(m)[name] for m in (api, *_MODULES.values()) if name in m.__all__)
    return found


def _kinds() -> str:
    names = {id(kind): name for name, kind in vars(kinds).items()}
    return table(
        ("Constant", "Unit", "Key", "Meaning", "Sampled every", "Kept for"),
        (
            (
                code(names[id(kind)]),
                kind.unit,
                codes(kind.properties),
                _plain(kind.help),
                code(_CADENCES[kind.cadence]),
                _KEEPS[kind.retention_class],
            )
            for kind in KINDS.values()
        ),
    )


def _properties() -> str:
    """Properties of one name may have several sets of values: then it says of which kinds."""
    found: dict[Property, list[str]] = {}
    for kind in KINDS.values():
        for part in kind.parts:
            found.setdefault(part, []).append(kind.name)
    names = [part.name for part in found]
    return table(
        ("Property", "Meaning", "Values"),
        (
            (
                code(part.name) + (f" of {codes(used)}" if names.count(part.name) > 1 else ""),
                _plain(part.meaning),
                codes(part.values) or "any text",
            )
            for part, used in found.items()
        ),
    )


_CLAIM_HEAD = ("Constant", "Unit", "Levels", "Takes", "cgroup v1", "cgroup v2", "Needs")
_READ_HEAD = ("Constant", "Unit", "cgroup v1", "cgroup v2", "Needs")


def _resources(
    rows: Iterable[Resource[Any]],
    row: Callable[[str, Resource[Any]], tuple[str, ...]],
    head: tuple[str, ...],
) -> str:
    names = {
        id(resource): name
        for name, resource in vars(resources).items()
        if isinstance(resource, Resource)
    }
    names |= dict.fromkeys(map(id, resources.SCHED_FEATURE.values()), 'SCHED_FEATURE["NAME"]')
    made = (row(names[id(resource)], resource) for resource in rows)
    return table(head, dict.fromkeys(made))  # rows that only differ in NAME are one


def _row(name: str, resource: Resource[Any]) -> tuple[str, ...]:
    return (code(name), resource.unit, *_places(resource), resource.needs)


def _claimable_row(name: str, resource: Resource[Any]) -> tuple[str, ...]:
    name, unit, v1, v2, needs = _row(name, resource)
    takes = dict.fromkeys(map(_takes, resource.files.values()))
    return name, unit, ", ".join(claimable_levels(resource)), "; v2: ".join(takes), v1, v2, needs


def _takes(file: File[Any]) -> str:
    if file.validate is None:
        return "what the kernel takes"
    if isinstance(file.validate, InRange):
        return str(file.validate)
    owner = getattr(file.validate, "__self__", None)
    if isinstance(owner, DeviceLimits):
        return ", ".join(f"{name} up to {most}" for name, most in owner.highest.items())
    check = file.validate.func if isinstance(file.validate, partial) else file.validate
    text = inspect.getdoc(check) or ""
    return text.partition(".\n")[0].removesuffix(".").removeprefix("Accept ")


def _places(resource: Resource[Any]) -> tuple[str, str]:
    v1, v2 = (_place(resource.files.get(version)) for version in (1, 2))
    return v1, v2


def _place(file: File[Any] | None) -> str:
    if file is None:
        return ""
    root = file.root
    directory = root.directory if isinstance(root, ObjectKind) else _ROOTS[root]
    return " or ".join(code(f"{directory}{name}") for name in (file.name, *file.others))


def _members(owner: type, names: tuple[str, ...]) -> str:
    chosen = names or tuple(
        name for name, _ in inspect.getmembers(owner, _is_method) if not name.startswith("_")
    )
    return table(
        ("Call", "Meaning"),
        (
            (code(_call(name, getattr(owner, name))), _first_words(getattr(owner, name)))
            for name in chosen
        ),
    )


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) and bool(inspect.getdoc(member))


def _call(name: str, method: Callable[..., Any]) -> str:
    waits = inspect.iscoroutinefunction(method)
    shown = ", ".join(_parameters(inspect.signature(method)))
    return f"{'await ' if waits else ''}{name}({shown})"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    star = False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
            yield f"*{parameter.name}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield f"**{parameter.name}"
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not star:
                star = True
                yield "*"
            default = parameter.default
            yield parameter.name + ("" if default is parameter.empty else f"={_shown(default)}")


def _shown(default: object) -> str:
    return str(default) if isinstance(default, Enum) else repr(default)


def _charter(module: ModuleType) -> str:
    """Return the content of a public module in short: the first line of its docstring."""
    return f"{code(module.__name__)}. {_first_words(module)}"


def _names(module: Any) -> str:
    return table(
        ("Name", "Is", "Meaning"),
        ((code(name), *_described(name, getattr(module, name))) for name in module.__all__),
    )


def _described(name: str, thing: object) -> tuple[str, str]:
    """A name without a docstring is a KeyError: add it to _WITHOUT_DOCSTRING."""
    for what, is_one in (
        ("enum", lambda: isinstance(thing, type) and issubclass(thing, Enum)),
        ("error", lambda: isinstance(thing, type) and issubclass(thing, Exception)),
        ("class", lambda: isinstance(thing, type)),
        ("function", lambda: inspect.isfunction(thing)),
        ("module", lambda: inspect.ismodule(thing)),
    ):
        if is_one():
            return what, _first_words(thing)
    return "value", sentence(_WITHOUT_DOCSTRING[name])


def _first_words(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return _plain(" ".join(text.split()))


def _plain(text: str) -> str:
    """A sentence in which <x> is no HTML."""
    return sentence(text if "`" in text else text.replace("<", "\\<"))
