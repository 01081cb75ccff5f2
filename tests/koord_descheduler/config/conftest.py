"""Configurations from text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from koord.component.config.field_errors import InvalidConfig
from koord_descheduler.config import Configuration, ReadConfig, parse_configuration
from tests.support.descheduler.shipped_plugins import IN_TREE

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"


@pytest.fixture
def read() -> Callable[[str], ReadConfig]:
    """Read the text of a configuration behind its head."""
    return lambda text: parse_configuration((HEAD + text).encode(), Path("/c.yaml"), IN_TREE)


@pytest.fixture
def config(read) -> Callable[[str], Configuration]:
    return lambda text: read(text).configuration


@pytest.fixture
def faults(read) -> Callable[[str], list[str]]:
    """Return the faults of a text that is refused."""

    def refused(text: str) -> list[str]:
        with pytest.raises(InvalidConfig) as caught:
            read(text)
        return [str(fault) for fault in caught.value.faults]

    return refused


@pytest.fixture
def args(config) -> Callable[[str, str], object]:
    """Return the arguments of a plugin from YAML in one line; it is enabled where it can be."""

    def read_args(plugin: str, text: str) -> object:
        return config(profile_with(plugin, text)).profiles[0].args[plugin]

    return read_args


@pytest.fixture
def args_faults(faults) -> Callable[[str, str], list[str]]:
    """Return the faults of a plugin's arguments without their common path."""

    def refused(plugin: str, text: str) -> list[str]:
        return [
            fault.removeprefix("profiles[0].pluginConfig[0].args.")
            for fault in faults(profile_with(plugin, text))
        ]

    return refused


def profile_with(plugin: str, text: str) -> str:
    """A profile that runs one plugin with these arguments."""
    enabled = f"{{disabled: [{{name: '*'}}], enabled: [{{name: {plugin}}}]}}"
    points = "".join(
        f"    {point}: {enabled}\n" for point in sorted(IN_TREE[plugin].points, reverse=True)
    )
    return f"""\
deschedulingInterval: 10s
profiles:
- plugins:
{points}  pluginConfig:
  - name: {plugin}
    args: {text}
"""
