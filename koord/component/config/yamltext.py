"""JSON values as YAML text that koord.util.documents reads back to the same."""

import math
from typing import TYPE_CHECKING, Any

from koord.util.yamlscalars import resolve

if TYPE_CHECKING:
    import yaml


def to_yaml(value: object) -> str:
    """Return the YAML of a JSON value. Texts that Kubernetes would take for more have quotes.

    Raises:
        ValueError: a number in it is not finite, which JSON cannot say.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Follows Kubernetes' rules of plain scalars, not PyYAML's, and makes no aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: Dumper, data: str) -> "yaml.Node":
        style = None if _is_itself(data) else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def number(dumper: Dumper, data: float) -> "yaml.Node":
        if not math.isfinite(data):
            raise ValueError(f"the number {data}")
        return dumper.represent_scalar("tag:yaml.org,2002:float", _decimal(data))

    Dumper.add_representer(str, text)
    Dumper.add_representer(float, number)
    written: Any = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=False)
    return str(written)


def _is_itself(text: str) -> bool:
    """Whether a text without quotes is read as this text."""
    try:
        return resolve(text) == text
    except ValueError:
        return False


def _decimal(number: float) -> str:
    """A float as YAML 1.1 has it: with a point, and a sign in the exponent."""
    text = repr(number)
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}{'' if '.' in mantissa else '.0'}{e}{exponent}"
