"""Names that plugins of all three daemons may use: errors, time, health, logs.

args has the checks of a plugin's arguments, kube the API server: resources, client, informers,
errors. Quantities and label selectors are in koord.api (quantity, labelselector).
"""

from koord.util.clock import Clock
from koord.util.documents import decode as decode_document
from koord.util.errors import InvalidObject, KoordError, OptionError, Unavailable
from koord.util.health import OK, HealthStatus, LastingFailure, PartHealth
from koord.util.logs import LimitedLog, LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import WorkQueue

__all__ = [
    "OK",
    "Clock",
    "HealthStatus",
    "InvalidObject",
    "KoordError",
    "LastingFailure",
    "LimitedLog",
    "LogState",
    "OptionError",
    "PartHealth",
    "Stop",
    "Unavailable",
    "WorkQueue",
    "decode_document",  # JSON or YAML, bounded
    "get_logger",
]
