"""Annotations whose value is a JSON object."""

from koordlet.api.fields import Fields
from koordlet.api.jsonrules import parse_json


def annotation_fields(text: str, where: str) -> Fields:
    """Return the object of an annotation; as in Go, null is one without fields.

    Raises:
        InvalidObject: it is no JSON, or something else than an object.
    """
    value = parse_json(text, where)
    return Fields({} if value is None else value, where)
