"""Death at every step of writing and journalling, and any history: the originals are restored."""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.node import squeezer
from tests.support.node.kernel_model import MOST, Refused
from tests.support.node.model_tree import (
    BURST,
    CPUS,
    IDLE,
    PLACES,
    QUOTA,
    SHARES,
    Died,
    ModelTree,
    Mortal,
)
from tests.support.node.model_tree import desired as want
from tests.support.node.model_tree import release as put_back
from tests.support.node.value_lifecycle import BORN, dawn, live

SQUEEZER = Path(squeezer.__file__)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(request, monkeypatch):
    """In memory where there is such a place, as thousands of files are written."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power failure here
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        yield ModelTree(Path(root) / "host", request.param)


def assert_as_before(tree, before, where):
    """Everything is restored, and no group created meanwhile stays squeezed."""
    born = tree.kernel.groups.pop(BORN, None)
    assert tree.snapshot() == before, where
    assert born is None or born.cpus in (MOST, frozenset())
    assert not tree.writer().unclaimed()


def test_after_death_at_any_step_everything_is_restored(tree):
    """By the next start, and if that dies as well, by the one after it."""
    dawn(tree)
    hook = Mortal()
    live(tree, hook)
    assert len(hook.steps) > 100
    for at, step in enumerate(hook.steps, 1):
        dawn(tree)
        before = tree.snapshot()
        with pytest.raises(Died):
            live(tree, Mortal(at))
        with contextlib.suppress(Died):
            tree.restore(Mortal(at % 8 + 1))
        tree.restore()
        assert_as_before(tree, before, step)


def test_after_kill_9_everything_is_restored(tree):
    """Real processes; the first step that is not reached any more ends it."""
    command = [sys.executable, str(SQUEEZER), str(tree.root), str(tree.version)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        for at in itertools.count(1, 7):
            dawn(tree)
            before = tree.snapshot()
            print(at, file=parent.stdin, flush=True)
            answer = parent.stdout.readline()
            if answer == "ended\n":
                break
            assert answer == "killed\n"
            left = ModelTree(tree.root, tree.version, fresh=False)
            left.restore()
            assert_as_before(left, before, at)
        parent.stdin.close()
    assert at > 100


texts = {
    QUOTA: st.sampled_from(["-1", "20000", "50000", "90000"]),
    BURST: st.sampled_from(["0", "10000", "40000"]),
    CPUS: st.sampled_from(["0-7", "0-3", "2-5", "6"]),
    SHARES: st.sampled_from(["100", "300", "512"]),
    IDLE: st.sampled_from(["0", "1"]),
}


@st.composite
def events(draw):
    """Claims, withdrawals, foreign writes, looks, time, and death at some step."""
    resource = draw(st.sampled_from(sorted(texts, key=lambda resource: resource.name)))
    place = draw(st.sampled_from(PLACES))
    kind = draw(st.sampled_from(["claim", "claim", "withdraw", "foreign", "sweep", "wait", "die"]))
    return kind, resource, place, draw(texts[resource]), draw(st.integers(1, 12))


class History:
    """What a sequence of events comes to, and what must be there in the end."""

    def __init__(self, tree):
        self.tree = tree
        self.writer = tree.writer()
        self.claimed = {}
        self.allowed = {slot: {text} for slot, text in tree.snapshot().items()}

    def run(self, kind, resource, place, text, number):
        getattr(self, kind)(resource, place, text, number)

    def claim(self, resource, place, text, _):
        file = resource.files[self.tree.version]
        value = file.text.value("max" if text == "-1" and self.tree.version == 2 else text)
        self.claimed[resource, place] = want(resource, place, value)
        self.writer.apply([self.claimed[resource, place]])

    def withdraw(self, resource, place, text, _):
        if self.claimed.pop((resource, place), None):
            self.writer.apply([put_back(resource, place)])

    def foreign(self, resource, place, text, _):
        text = "max" if text == "-1" and self.tree.version == 2 else text
        try:
            self.tree.foreign(resource, place, text)
        except Refused:
            return
        self.allowed[place, resource.name].add(text)
        if resource is IDLE:  # which changes the shares, too
            self.allowed[place, SHARES.name].add(self.tree.read(SHARES, place))

    def sweep(self, *_):
        strays = self.writer.sweep()
        self.writer.apply([self.claimed[k.resource, k.target.place] for k in strays])

    def wait(self, resource, place, text, number):
        self.tree.clock.tick(5 * number)

    def die(self, resource, place, text, number):
        self.claimed.clear()
        with contextlib.suppress(Died):
            self.writer = self.tree.writer(Mortal(number))
            self.writer.restore(self.writer.unclaimed())
            self.claim(resource, place, text, number)
            self.withdraw(resource, place, text, number)
        self.claimed.clear()
        self.tree.restore()
        self.writer = self.tree.writer()


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(events(), max_size=25))
def test_whatever_happens_each_value_is_the_original_or_a_foreign_one(tree, sequence):
    """After everything is switched off."""
    tree.reset()
    history = History(tree)
    for event in sequence:
        history.run(*event)
    history.writer.apply([put_back(*slot) for slot in history.claimed])
    for _ in range(3):  # what was in the way of one may be away now
        history.writer.restore(history.writer.unclaimed(), at_once=True)

    for slot, text in tree.snapshot().items():
        assert text in history.allowed[slot], slot
