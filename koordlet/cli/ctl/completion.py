"""koordletctl completion and words: scripts for shells, and the names that they complete."""

import re
from collections.abc import Iterable

from koord.component.completion import completion
from koord.util.errors import KoordError
from koordlet.cli.ctl.arguments import CtlOptions
from koordlet.cli.ctl.client import CtlClient
from koordlet.metriccache.kinds import KINDS


def run(client: CtlClient, options: CtlOptions) -> int:
    """Print it; no daemon is asked."""
    print(completion(options.program, options.shell), end="")
    return 0


_MAX_WORDS = 1000
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")  # bash expands what it gets: `$`, backquotes


def run_words(client: CtlClient, options: CtlOptions) -> int:
    """Print a word a line; none without a daemon, as an error would stand in the command line."""
    try:
        found = list(_words(client, options.kind))
    except KoordError:
        return 1
    for word in sorted(filter(_PLAIN.fullmatch, found))[:_MAX_WORDS]:
        print(word)
    return 0


def _words(client: CtlClient, kind: str) -> Iterable[str]:
    match kind:
        case "pods":
            return [str(pod["name"]) for pod in client.get("top")["pods"]]
        case "plugins":
            return [str(plugin["name"]) for plugin in client.get("plugins")]
        case _:
            return list(KINDS)
