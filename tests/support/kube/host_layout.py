"""The daemon on a host that is laid out in plain files, which only code can ask for: HostPaths."""

import sys

from koordlet.cli.daemon import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], laid_out=True))
