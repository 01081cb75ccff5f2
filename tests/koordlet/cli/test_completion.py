"""Command lines completed by the real shells, on a terminal."""

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pexpect
import pytest
from commandlines import completions

from koord.component.completion import PROGRAMS, SHELLS, completion
from koord.util.errors import Unavailable

TIMEOUT = 60  # seconds; only a broken completion takes them
PROMPT = "@@ "
START = {
    "bash": (["--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (
        ["-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(<{script})"',
    ),
    "fish": (
        ["--no-config", "-i", "-C", "function fish_prompt; echo '@@ '; end"],
        "source {script}",
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
    ("koord-manager", "koord-manager ex", "koord-manager explain "),
)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The directory in which an installation has made the completions."""
    directory = tmp_path_factory.mktemp("completions")
    assert completions.main(["--directory", str(directory)]) == 0
    return directory


@pytest.fixture
def shell(tmp_path, scripts, request):
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
        timeout=TIMEOUT,
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
    script = scripts / f"{program}.{name}"
    process.sendline(start.format(script=script) + "; echo re''ady")
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
def test_a_program_prints_what_its_installation_made(scripts, program, shell):
    assert completion(program, shell, scripts) == (scripts / f"{program}.{shell}").read_text()
    assert program in completion(program, shell, scripts)


def test_an_installation_without_completions_says_how_to_make_them(tmp_path):
    with pytest.raises(Unavailable, match="make install-systemd"):
        completion("koordlet", "bash", tmp_path)


def test_shells_find_completions_below_share(tmp_path, monkeypatch):
    """A program that cannot run here has none, and the others have theirs."""
    made = completions.completions_of

    def without_numpy(program):
        if program == "koord-scheduler":
            raise ModuleNotFoundError("no numpy", name="numpy")
        return made(program)

    monkeypatch.setattr(completions, "completions_of", without_numpy)
    options = ["--directory", str(tmp_path / "package"), "--share", str(tmp_path / "share")]
    assert completions.main(options) == 0
    share = {
        str(path.relative_to(tmp_path / "share")): path.stat().st_mode & 0o777
        for path in (tmp_path / "share").rglob("*")
        if path.is_file()
    }
    assert share == {
        place: 0o644
        for program in ("koordlet", "koordletctl", "koord-descheduler", "koord-manager")
        for place in (
            f"bash-completion/completions/{program}",
            f"zsh/site-functions/_{program}",
            f"fish/vendor_completions.d/{program}.fish",
        )
    }


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
