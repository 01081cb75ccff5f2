"""Command lines completed by the real shells, on a terminal."""

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pexpect
import pytest

from koord.component.completion import PROGRAMS, SHELLS, completion

PATIENCE = 60  # seconds; only a broken completion takes them
PROMPT = "@@ "
START = {
    "bash": (["--norc", "--noprofile", "-i"], "source <(koordletctl completion bash {program})"),
    "zsh": (
        ["-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(koordletctl completion zsh {program})"',
    ),
    "fish": (
        ["--no-config", "-i", "-C", "function fish_prompt; echo '@@ '; end"],
        "koordletctl completion fish {program} | source",
    ),
}
LINES = (
    ("koordletctl", "koordletctl expl", "koordletctl explain "),
    ("koordletctl", "koordletctl --output js", "koordletctl --output json "),
    ("koordletctl", "koordletctl metrics node_cpu_u", "koordletctl metrics node_cpu_usage "),
    ("koordletctl", "koordletctl completion zs", "koordletctl completion zsh "),
    ("koordlet", "koordlet --coldpage-cpu-p", "koordlet --coldpage-cpu-percent "),
    ("koord-descheduler", "koord-descheduler pl", "koord-descheduler plan "),
    ("koord-scheduler", "koord-scheduler simulate --see", "koord-scheduler simulate --seed "),
)


@pytest.fixture
def shell(tmp_path, request):
    """A shell in which a program's completion was read."""
    name, program = request.param
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"there is no {name}")
        pytest.skip(f"there is no {name}: apt-get install {name}")
    options, start = START[name]
    here = Path(sys.executable).parent
    process = pexpect.spawn(
        found,
        options,
        encoding="utf-8",
        timeout=PATIENCE,
        dimensions=(24, 200),
        cwd=tmp_path,
        env={
            "PATH": f"{here}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "TERM": "dumb",
            "PS1": PROMPT,
            "LC_ALL": "C.UTF-8",
        },
    )
    process.expect_exact(PROMPT)
    process.sendline(start.format(program=program) + "; echo re''ady")
    process.expect_exact("ready")
    process.expect_exact(PROMPT)
    yield process
    process.kill(signal.SIGKILL)
    process.wait()
    process.close()


@pytest.mark.parametrize(
    ("shell", "typed", "completed"),
    [((name, program), typed, whole) for name in SHELLS for program, typed, whole in LINES],
    indirect=["shell"],
)
def test_a_shell_completes_commands_options_and_names(shell, typed, completed):
    shell.send(f"{typed}\t")
    rest = completed.removeprefix(typed)
    shell.expect_exact(rest.rstrip())


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", SHELLS)
def test_the_completions_are_installed_with_the_programs(program, shell):
    assert program in completion(program, shell)


def test_pods_plugins_and_kinds_are_words_to_complete(daemon, ctl):
    assert ctl("words", "pods") == (0, "default/batch\ndefault/web\n", "")
    assert "node_cpu_usage\n" in ctl("words", "kinds")[1]
    assert "PressureWatch\n" in ctl("words", "plugins")[1]


def test_a_name_that_a_shell_would_run_is_no_word(daemon, ctl):
    """bash expands the words that it is given."""
    pod = daemon.states.pods()[0]
    daemon.states.set_pods([replace(pod, pod=replace(pod.pod, name="$(touch$IFS/tmp/x)"))])
    assert ctl("words", "pods") == (0, "", "")


def test_no_daemon_is_no_text_in_the_command_line(ctl):
    assert ctl("words", "pods") == (1, "", "")
