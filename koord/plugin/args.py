"""Arguments of plugins: their types and checks."""

from koord.component.config.componentconfig import Int32, Seconds, UInt, UInt32
from koord.component.config.field_errors import (
    FieldError,
    FieldPath,
    Key,
    duplicate,
    invalid,
    invalid_duration,
    required,
    unsupported,
    warning,
)
from koord.component.plugins.args import takes_args
from koord.util.goformat import format_duration as duration_text
from koord.util.goformat import parse_float

__all__ = [
    "FieldError",
    "FieldPath",
    "Int32",
    "Key",
    "Seconds",
    "UInt",
    "UInt32",
    "duplicate",
    "duration_text",
    "invalid",
    "invalid_duration",
    "parse_float",
    "required",
    "takes_args",
    "unsupported",
    "warning",
]
