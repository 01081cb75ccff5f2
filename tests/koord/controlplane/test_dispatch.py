"""Which module a command line is for, and what ^C does meanwhile."""

import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from koord.controlplane.dispatch import Command, dispatch

PACKAGES = ("numpy", "msgspec", "httptools")
ROOT = Path(__file__).parents[3]
COMMANDS = {"plan": Command("fake_plan"), "record": Command("fake_record", handles_interrupt=False)}


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], bool]]:
    """Modules, their arguments, and whether ^C raised while they ran."""
    found: list[tuple[str, list[str], bool]] = []
    for name, function in (("fake_plan", "main"), ("fake_record", "main"), ("fake_daemon", "run")):
        module = types.ModuleType(name)

        def act(argv: Sequence[str], name: str = name) -> int:
            raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            found.append((name, list(argv), raises))
            return 3

        setattr(module, function, act)
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["plan", "--node", "a"], ("fake_plan", ["--node", "a"], True)),
        (["record"], ("fake_record", [], False)),
        (["--config=x"], ("fake_daemon", ["--config=x"], False)),
        (["other"], ("fake_daemon", ["other"], False)),
        ([], ("fake_daemon", [], False)),
    ],
)
def test_the_first_word_names_a_command_or_else_it_is_the_daemon(
    asked: list[tuple[str, list[str], bool]],
    argv: list[str],
    wanted: tuple[str, list[str], bool],
) -> None:
    assert dispatch(COMMANDS, "fake_daemon", argv) == 3
    assert asked == [wanted]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_without_arguments_those_of_the_process_count(
    asked: list[tuple[str, list[str], bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "plan", "x"])
    dispatch(COMMANDS, "fake_daemon", None)
    assert asked == [("fake_plan", ["x"], True)]


def test_what_is_given_besides_goes_to_the_daemon_and_to_commands_that_take_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[str, tuple[object, ...]]] = []
    for name, function in (("fake_plan", "main"), ("fake_more", "main"), ("fake_daemon", "run")):
        module = types.ModuleType(name)

        def act(*given: object, name: str = name) -> int:
            found.append((name, given))
            return 0

        setattr(module, function, act)
        monkeypatch.setitem(sys.modules, name, module)
    commands = {**COMMANDS, "more": Command("fake_more", takes_more=True)}
    for argv in (["plan"], ["more"], []):
        dispatch(commands, "fake_daemon", argv, "extra")
    assert found == [
        ("fake_plan", ([],)),
        ("fake_more", ([], "extra")),
        ("fake_daemon", ([], "extra")),
    ]


@pytest.mark.parametrize(
    ("program", "module", "argv", "package"),
    [
        *(("koord-descheduler", "koord_descheduler.cli.descheduler", [], one) for one in PACKAGES),
        *(("koord-scheduler", "koord_scheduler.command", [], one) for one in PACKAGES),
        *(("koord-manager", "koord_manager.command", [], one) for one in PACKAGES),
        ("koord-descheduler", "koord_descheduler.cli.descheduler", ["plan", "--help"], "numpy"),
        ("koord-manager", "koord_manager.command", ["explain", "n1"], "msgspec"),
    ],
)
def test_without_its_extra_a_command_says_what_to_install(
    program: str, module: str, argv: list[str], package: str
) -> None:
    """One line, and the extra is one of pyproject.toml that has the package."""
    script = f"import sys; sys.modules[{package!r}] = None; from {module} import main; "
    script += f"sys.exit(main({argv!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    [line] = done.stderr.splitlines()
    extra = program.removeprefix("koord-")
    assert line == (
        f"{program}: the Python package {package} is not installed; pip install 'koordlet[{extra}]'"
    )
    assert (done.returncode, done.stdout) == (1, "")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(one.startswith(package) for one in extras["optional-dependencies"][extra])


def test_another_missing_module_is_an_error_of_the_program() -> None:
    """As a wrong installation, or a plugin's fault: its traceback is what helps."""
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        dispatch({}, "not_there", [])
