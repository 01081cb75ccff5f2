"""Forks processes that claim values and kill themselves at a step: one per line of input.

A line is the number of the step. "gone" is printed when the process is.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.node.model_tree import ModelTree
from tests.support.node.value_lifecycle import live


class Suicide:
    """kill -9 at a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, name: str) -> None:
        self.at -= 1
        if self.at == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    root, version = Path(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            tree = ModelTree(root, version, fresh=False)
            live(tree, Suicide(int(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print("killed" if os.WIFSIGNALED(status) else "ended", flush=True)


if __name__ == "__main__":
    main()
