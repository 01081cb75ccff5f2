"""The command `kubectl koordlet`: koordletctl of a node's agent, by kubectl exec.

It runs where kubectl runs, so it needs nothing of the agent's.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from koord.util.errors import KoordError
from koord.util.text import printable

COMMANDS = ("top", "explain", "status", "plugins", "metrics", "doctor", "audit", "nodemetric",
            "dry-run")  # fmt: skip
NAMESPACE = "koordlet-system"
SELECTOR = "app.kubernetes.io/name=koordlet"
CONTAINER = "koordlet"
FAILED, USAGE, INTERRUPTED = 1, 2, 130

_MAX_ERROR = 2000  # characters of an error, which may quote kubectl
_TIMEOUT = 60.0  # seconds; kubectl has none of its own
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")  # RFC 1123, as nodes and pods have
_ABOUT = """\
Run koordletctl in the koordlet pod of a node. What stands behind NODE is for koordletctl:

  kubectl koordlet top node-7
  kubectl koordlet explain node-7 shop/web-0
  kubectl koordlet status node-7 --output=json

It takes the right to list pods and to create pods/exec in the namespace; that is root on the
node."""
_EXIT = "Exit status: that of koordletctl; 1 also without such a pod; 2 for a wrong command line."


class KubectlOptions(argparse.Namespace):
    """The options of a command line."""

    command: str
    node: str
    arguments: Sequence[str]
    namespace: str
    selector: str
    container: str
    context: str | None
    kubeconfig: str | None


class NoAgent(KoordError):
    """There is no one pod to ask."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; does not return where kubectl takes over."""
    options = parser().parse_args(argv, namespace=KubectlOptions())
    try:
        kubectl = _kubectl(options)
        pod = _pod(kubectl, options)
        os.execvp(kubectl[0], [*kubectl, *_exec(pod, options)])  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        problem = "wanted the program kubectl, found none in PATH: install it"
    except (KoordError, OSError) as err:
        problem = str(err)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"kubectl-koordlet: {printable(problem)[:_MAX_ERROR]}", file=sys.stderr)
    return FAILED


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    whole = argparse.ArgumentParser(
        prog="kubectl koordlet",
        description=_ABOUT,
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = whole.add_argument
    add("--namespace", "-n", default=NAMESPACE, type=_name, help=f"of the pods ({NAMESPACE})")
    add("--selector", "-l", default=SELECTOR, help=f"labels of the pods ({SELECTOR})")
    add("--container", "-c", default=CONTAINER, type=_name, help=f"in the pod ({CONTAINER})")
    add("--context", help="as kubectl's")
    add("--kubeconfig", metavar="FILE", help="as kubectl's")
    add("command", metavar="COMMAND", choices=COMMANDS, help=", ".join(COMMANDS))
    add("node", metavar="NODE", type=_name, help="the node")
    add("arguments", metavar="...", nargs=argparse.REMAINDER, help="for koordletctl")
    return whole


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"wanted a name as Kubernetes has them, found {text!r}")
    return text


def _kubectl(options: KubectlOptions) -> list[str]:
    """kubectl, for that cluster and namespace."""
    given = {"kubeconfig": options.kubeconfig, "context": options.context}
    named = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return ["kubectl", *named, f"--namespace={options.namespace}"]


def _pod(kubectl: Sequence[str], options: KubectlOptions) -> str:
    """The name of the agent's pod on the node.

    Raises:
        NoAgent: there is none, or more than one; or kubectl says why it cannot list them.
    """
    where = f"spec.nodeName={options.node},status.phase=Running"
    try:
        listed = subprocess.run(  # noqa: S603 - kubectl, and names that were checked
            [*kubectl, "get", "pods", f"--selector={options.selector}",
             f"--field-selector={where}", "--output=json"],
            capture_output=True, text=True, timeout=_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoAgent(f"wanted a list of pods, found no answer within {_TIMEOUT:.0f} s") from None
    if listed.returncode:
        raise NoAgent(listed.stderr.strip() or f"kubectl ended with {listed.returncode}")
    try:
        names = [str(pod["metadata"]["name"]) for pod in json.loads(listed.stdout)["items"]]
    except (ValueError, KeyError, TypeError):
        raise NoAgent("wanted a list of pods, found another answer of kubectl") from None
    sought = (
        f"wanted one running pod with {options.selector} on node {options.node} in namespace "
        f"{options.namespace}"
    )
    if len(names) != 1:
        found = "none" if not names else f"{len(names)}: {', '.join(sorted(names)[:5])}"
        raise NoAgent(f"{sought}, found {found}; --namespace and --selector say where to look")
    if not _NAME.fullmatch(names[0]):
        raise NoAgent(f"{sought}, found one with the name {names[0]!r}")
    return names[0]


def _exec(pod: str, options: KubectlOptions) -> list[str]:
    """Arguments of kubectl: a terminal only where there is one at both ends."""
    live = sys.stdin.isatty() and sys.stdout.isatty()
    terminal = ["--stdin", "--tty"] if live else []
    return ["exec", *terminal, pod, f"--container={options.container}", "--",
            "koordletctl", options.command, *options.arguments]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
