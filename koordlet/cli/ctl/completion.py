"""koordletctl completion: what a shell completes command lines by."""

from koord.component.completion import completion
from koordlet.cli.ctl.arguments import Options
from koordlet.cli.ctl.client import CtlClient


def run(client: CtlClient, options: Options) -> int:
    """Print it; no daemon is asked."""
    print(completion(options.program, options.shell), end="")
    return 0
