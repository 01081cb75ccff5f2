"""python -m benchmarks [--smoke] [NAME...]: measure and print a table; only errors make it fail."""

import argparse
import importlib
import sys
import time

from benchmarks.table import Row, render
from benchmarks.tree import NotHereError

BENCHMARKS = (
    "imports",
    "reading",
    "statuspage",
    "report",
    "prediction",
    "claims",
    "replay",
    "loop_lag",
    "growth",
    "suppress",
    "daemon_cost",
    "acting_cost",
    "nri",
    "hardware",
    "network",
    "cluster",
    "peer",
    "informer",
    "snapshot",
    "framework",
    "scheduling",
    "gangs",
    "reservations",
    "extender",
    "plugincosts",
    "quotas",
    "devices",
    "cpusets",
    "watchevents",
    "oddobjects",
    "requests",
    "lownodeload",
    "rebalancing",
    "noderesource",
    "fleet",
    "descheduler",
    "hostile",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="short runs, to see that all work")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.names or BENCHMARKS:
        start = time.monotonic()
        print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
        try:
            rows += importlib.import_module(f"benchmarks.{name}").run(smoke=options.smoke)
            print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
        except NotHereError as err:
            print(f"left out: {err}", file=sys.stderr)
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
