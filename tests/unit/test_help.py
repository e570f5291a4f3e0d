"""Commands help alike: by what people want, with an example that works, each option with one name."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict

import click
import pytest

from bubblescope.cli import COMMANDS, GROUPS, cli
from bubblescope.cli.help_conventions import example
from bubblescope.cli.option_sections import SECTIONS, Sectioned

THEIRS = {"ascend", "paddle"}
"""Commands that take the options of other vendors' tools, as these spell them."""


def walk(command=cli, path=()):
    """Yield every command with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


ALL = dict(walk())
RUN = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}


def options_of(command):
    return [param for param in command.params if isinstance(param, click.Option)]


def named(path):
    return " ".join(path) or "bubblescope"


def test_help_groups_all_commands_by_what_people_want():
    grouped = [name for group in GROUPS.values() for name in group]
    assert sorted(grouped) == sorted(COMMANDS)
    shown = cli.get_help(click.Context(cli, info_name="bubblescope", terminal_width=80))
    titles = [*GROUPS, "More commands"]
    assert [line[:-1] for line in shown.splitlines() if line.rstrip(":") in titles] == titles
    summaries = shown.partition(titles[0])[2]
    assert "..." not in summaries, "a summary is cut at 80 characters"


@pytest.mark.parametrize("path", ALL, ids=named)
def test_help_ends_with_an_example_that_works(path):
    command = ALL[path]
    context = click.Context(command, info_name=named(path), terminal_width=80)
    assert "Example" in (command.epilog or "")
    lines = [line.strip() for line in command.epilog.splitlines()[2:]]
    assert lines
    shown = command.get_help(context)
    assert all(line in shown for line in lines)
    assert max(map(len, shown.splitlines())) <= 80
    for number, line in enumerate(lines):
        words = shlex.split(line)
        if line.startswith("eval "):
            words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
        words = words[: words.index(">")] if ">" in words else words
        assert words[0] == "bubblescope"
        parsed, at = cli, 1
        while isinstance(parsed, click.Group) and words[at] != "COMMAND":
            parsed, at = parsed.get_command(context, words[at]), at + 1
        if parsed is not cli:
            assert number or path == () or parsed is command or isinstance(command, click.Group)
            parsed.make_context(words[1], words[at:])


@pytest.mark.parametrize("path", ALL, ids=named)
def test_every_command_and_option_says_what_it_is(path):
    command = ALL[path]
    assert command.help.strip()
    for option in options_of(command):
        assert option.help, option.name
        assert option.help.endswith((".", ")")), option.help


def test_an_option_has_one_name_everywhere():
    short, long = defaultdict(set), defaultdict(set)
    for path, command in RUN.items():
        if path[0] in THEIRS:
            continue
        for option in options_of(command):
            shorts = [one for one in option.opts if not one.startswith("--")]
            longs = [one for one in option.opts if one.startswith("--")]
            assert len(longs) == 1, (path, option.opts)
            assert all("_" not in one for one in longs), (path, longs)
            short[longs[0]].add(tuple(shorts))
            for one in shorts:
                long[one].add(longs[0])
    assert {name: flags for name, flags in short.items() if len(flags) > 1} == {}
    assert {name: flags for name, flags in long.items() if len(flags) > 1} == {}
    assert short["--output"] == {("-o",)}
    assert short["--quiet"] == {("-q",)}


@pytest.mark.parametrize("path", ALL, ids=named)
def test_every_help_says_how_to_choose_the_language(path):
    shown = ALL[path].get_help(click.Context(ALL[path], info_name=named(path), terminal_width=80))
    assert "--lang [en|zh]" in shown


READERS = [path for path, command in ALL.items() if isinstance(command, Sectioned)]


@pytest.mark.parametrize("path", READERS, ids=named)
def test_what_a_command_alone_takes_comes_before_what_many_take(path):
    """Nobody looks for `--all` of a command among twenty options of all commands."""
    command = ALL[path]
    shown = command.get_help(click.Context(command, info_name=named(path), terminal_width=80))
    titles = ["Options:", *(f"{title}:" for title in SECTIONS)]
    assert [line for line in shown.splitlines() if line in titles] == titles
    own, reading, workers = (
        part.partition("\n\n")[0] for part in re.split("|".join(map(re.escape, titles)), shown)[1:]
    )
    assert "--names " not in own
    assert "--workers " not in own
    assert "--quiet " in own
    assert "--names " in reading
    assert "--workers " in workers


def test_json_and_output_are_spelt_alike():
    for path, command in RUN.items():
        for option in options_of(command):
            if "--json" in option.opts:
                assert option.is_flag, path
                assert option.help == "Print JSON, whose schema is versioned.", path
            if path[0] not in THEIRS:
                assert not {"--out", "--outfile", "--output-path", "--file"} & {*option.opts}, path


def test_the_version_has_a_short_option():
    assert [option.opts for option in cli.params] == [["-V", "--version"], ["--lang"]]


def test_an_example_keeps_its_lines():
    assert example("a", "b").splitlines() == ["\b", "Examples:", "  a", "  b"]
    assert example("a").splitlines()[1] == "Example:"


def test_scripts_of_the_first_version_record_to_where_they_did():
    command = COMMANDS["record"]
    context = command.make_context("record", ["--out", "there", "--", "true", "--out", "x"])
    assert context.params["folder"].name == "there"
    assert context.params["command"] == ("true", "--out", "x")
