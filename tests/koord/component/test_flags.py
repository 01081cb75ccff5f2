"""The flag set: Go's command-line syntax, the config file below it, owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.flag_values import DURATION, INT
from koord.component.flags import FlagSet, FlagSpec, FlagTable, HelpRequested
from koord.util.errors import OptionError


class Flags:
    """One flag of each kind."""

    def __init__(self) -> None:
        self.set = FlagSet()
        self.verbose = self.set.bool("verbose", False, "say more")
        self.count = self.set.int("count", 3, "how many", check=lambda n: "" if n else "not 0")
        self.share = self.set.float("share", 0.5, "how much")
        self.name = self.set.string("name", "n", "who")
        self.period = self.set.duration("period", 1.0, "how often")
        self.gates = self.set.bool_map("gates", {"Default": True}, "what")
        self.stages = self.set.string_list("stages", ["default"], "which")


@pytest.fixture
def flags() -> Flags:
    return Flags()


@pytest.mark.parametrize(
    "args",
    [["-count=5"], ["--count=5"], ["-count", "5"], ["--count", "0x5"], ["-count=1", "-count=5"]],
)
def test_all_spellings_of_a_value(flags, args):
    """One dash or two, equals sign or blank; of several occurrences the last counts."""
    assert flags.set.parse(args) == []
    assert flags.count.value == 5
    assert flags.count.is_set
    assert not flags.name.is_set


def test_a_bool_takes_no_separate_value(flags):
    """A bare -name means true, and what follows is no value of it."""
    assert flags.set.parse(["-verbose", "false", "--count=9"]) == ["false", "--count=9"]
    assert flags.verbose.value is True
    assert flags.count.value == 3


@pytest.mark.parametrize(
    ("args", "rest"),
    [
        (["--count=5", "--", "--count=6"], ["--count=6"]),
        (["--count=5", "-", "--count=6"], ["-", "--count=6"]),
        (["--count=5", "file", "--count=6"], ["file", "--count=6"]),
    ],
)
def test_parsing_stops(flags, args, rest):
    """Flags end at the first argument that is none, or after two dashes."""
    assert flags.set.parse(args) == rest
    assert flags.count.value == 5


def test_values_may_hold_anything(flags):
    """Only the first equals sign separates; a value may begin with a dash and may be empty."""
    flags.set.parse(["--name=a=b"])
    assert flags.name.value == "a=b"
    flags.set.parse(["--name", "-x"])
    assert flags.name.value == "-x"
    flags.set.parse(["--name="])
    assert flags.name.value == ""


def test_maps_and_lists_add_up(flags):
    """The first occurrence replaces the default, later ones add to it; lists keep commas."""
    assert flags.gates.value == {"Default": True}
    assert flags.stages.value == ("default",)

    flags.set.parse(["--gates=A=true,B=true", "--gates", "B=false", "--stages=x,y", "--stages=z"])

    assert flags.gates.value == {"A": True, "B": False}
    assert flags.stages.value == ("x,y", "z")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--cuont=5"], "unknown flag; the nearest is --count"),
        (["--VERBOSE"], "the nearest is --verbose"),
        (["--count=five"], "--count: found 'five'; wanted a whole number"),
        (["--count=0"], "--count: found 0; not 0"),
        (["--count"], "flag needs an argument"),
        (["--verbose=maybe"], "wanted true or false"),
        (["--period=10"], "not a duration"),
        (["--gates=A"], "malformed pair 'A', expect string=bool"),
        (["---count=5"], "bad flag syntax"),
        (["-=5"], "bad flag syntax"),
        (["--=5"], "bad flag syntax"),
    ],
)
def test_bad_arguments_are_explained(flags, args, message):
    """The message names the flag, what was found and what would do."""
    with pytest.raises(OptionError) as caught:
        flags.set.parse(args)
    assert message in str(caught.value)


@pytest.mark.parametrize("arg", ["-h", "--help", "-help"])
def test_help_lists_every_flag(flags, arg):
    with pytest.raises(HelpRequested) as caught:
        flags.set.parse(["--count=5", arg])
    for flag in flags.set:
        assert f"--{flag.name} {flag.kind.name}" in str(caught.value)


def test_a_name_twice_names_both_owners():
    """Two plugins that want the same flag learn of each other; the first keeps it."""
    flags = FlagSet()
    first = flags.owned_by("plugin A").int("level", 1, "first")
    with pytest.raises(OptionError, match="flag of plugin A; plugin B must choose another name"):
        flags.owned_by("plugin B").int("level", 2, "second")
    assert flags["level"] is first
    assert flags["level"].owner == "plugin A"


@pytest.mark.parametrize("name", ["", "-x", "a=b", "help", "h"])
def test_names_that_cannot_be_typed_are_refused(name):
    with pytest.raises(OptionError, match="not a flag name"):
        FlagSet().string(name, "", "")


def test_config_file_is_below_the_command_line(flags):
    """A flag on the command line wins; a map is joined and the command line wins per entry."""
    flags.set.parse(["--count=5", "--gates=A=true"])

    flags.set.set_from_config({"count": 7, "period": "2s", "gates": {"A": False, "B": True}})

    assert flags.count.value == 5
    assert flags.period.value == 2.0
    assert flags.gates.value == {"A": True, "B": True}
    assert flags.period.is_set


def test_config_file_read_again_forgets_the_last_one(flags):
    """Entries that are gone fall back to the default."""
    flags.set.set_from_config({"period": "2s", "name": "x"})
    flags.set.set_from_config({"name": "y"})
    assert (flags.period.value, flags.name.value) == (1.0, "y")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cuont": 5}, "f.yaml: cuont: found 'cuont'; no flag of this name; the nearest is count"),
        ({"name": "x", "count": "5"}, "f.yaml: count: found '5'; wanted a whole number"),
        ({"count": 0}, "not 0"),
    ],
)
def test_a_bad_config_changes_nothing(flags, values, message):
    """All entries or none; the message says where."""
    flags.set.set_from_config({"name": "before"})
    with pytest.raises(OptionError) as caught:
        flags.set.set_from_config(values, lambda key: f"f.yaml: {key}")
    assert message in str(caught.value)
    assert flags.name.value == "before"


def test_description_feeds_the_reference(flags):
    """Sorted rows with the canonical text of each default."""
    rows = {row.name: row for row in flags.set.describe()}
    assert list(rows) == sorted(rows)
    assert rows["period"].default == "1s"
    assert rows["gates"].default == "Default=true"
    assert rows["stages"].kind == "list of string"


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_command_line_is_taken_or_refused(args):
    """Whatever is typed, nothing but the two known exceptions comes out."""
    try:
        rest = Flags().set.parse(args)
    except (OptionError, HelpRequested):
        return
    assert rest == args[len(args) - len(rest) :]


class Table(FlagTable):
    """Two rows."""

    count = FlagSpec("count", INT, 3, "how many", lambda n: "" if n else "use 1 or more")
    period = FlagSpec("period", DURATION, 1.0, "how often")


def test_rows_of_a_table_become_flags_of_each_instance():
    """The class keeps the rows; values are those of one set."""
    first, second = FlagSet(), FlagSet()
    one, other = Table(first), Table(second)
    first.parse(["--count=5", "--period=2m"])

    assert (one.count.value, one.period.value) == (5, 120.0)
    assert (other.count.value, other.period.value) == (3, 1.0)
    assert isinstance(Table.count, FlagSpec)
    with pytest.raises(OptionError, match="use 1 or more"):
        first.parse(["--count=0"])


def test_two_tables_cannot_have_one_flag():
    flags = FlagSet("agent")
    Table(flags)
    with pytest.raises(OptionError, match="flag of agent"):
        Table(flags)
