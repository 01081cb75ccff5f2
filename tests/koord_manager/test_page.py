"""The samples of docs/manager.md."""

import re
from pathlib import Path
from typing import Any

import yaml

from koord.cluster.keptfields import reads_of
from koord_manager.config import FORMAT
from koord_manager.framework.calculator import Calculator, History
from koord_manager.framework.interfaces import PluginRegistry
from tests.support.manager import facts, node, quantities

PAGE = (Path(__file__).parents[2] / "docs" / "manager.md").read_text()


def sample(language: str, begin: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return next(one for one in found if one.startswith(begin))


def test_the_plugin_of_the_page_offers_what_an_annotation_says():
    """It is registered as a third party's, and its declaration is what the node's reader keeps."""
    names: dict[str, Any] = {}
    exec(sample("python", "from koord_manager.plugin"), names)
    registry = PluginRegistry()
    registry.register_class("Licenses", names["Licenses"])
    plugin = names["Licenses"](None, None)
    plugin.name = "Licenses"
    declared = reads_of(names["Licenses"]).node_annotations
    calculator = Calculator([plugin], declared=declared, max_decrease_percent=30)
    whole = quantities(cpu=1, memory="1G")

    def offered(**annotations: str) -> int | None:
        found = facts(node(whole, annotations={f"example.com/{key}": text
                                               for key, text in annotations.items()}))  # fmt: skip
        return calculator.calculate(found, History()).resources["example.com/licenses"].amount

    assert offered(licenses="7") == 7
    assert offered() is None


def test_the_file_of_the_page_is_read_without_a_warning():
    read = FORMAT.parse(sample("yaml", "apiVersion: manager").encode(), Path("page"), known={})

    assert read.warnings == ()
    assert read.configuration.max_decrease_percent == 30


def test_the_config_map_of_the_page_enables_colocation():
    found = yaml.safe_load(sample("yaml", "apiVersion: v1"))

    assert yaml.safe_load(found["data"]["colocation-config"])["enable"] is True
