"""Which module a command line is for, and what ^C does meanwhile."""

import signal
import sys
import types
from collections.abc import Iterator, Sequence

import pytest

from koord.controlplane.dispatch import Command, dispatch

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
