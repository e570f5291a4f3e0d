"""`bubblescope mcp` through a real client, and what a script finds out that follows its skill."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import agent_questions
from agent import Agent, RefusedError, Unknown, session
from bubblescope.agents.limits import MOST_CHARACTERS, limited
from bubblescope.agents.protocol import skill
from bubblescope.agents.runs import MOST, Runs
from bubblescope.agents.task_query import query
from bubblescope.agents.tools import Tools
from bubblescope.analysis.cannot_answer import ABOUT, unanswered
from bubblescope.model.errors import BubblescopeError
from canaries import CANARY, RAW, SHOWN
from places import ROOT
from synthetic import hostile, one_f_one_b
from two_runs import made


@pytest.fixture(scope="module")
def talked(tmp_path_factory):
    """What is said in one session of a client: what tools there are, and all answers."""
    pytest.importorskip("mcp")
    folder = tmp_path_factory.mktemp("runs")
    paths = agent_questions.write(folder)
    (outside := tmp_path_factory.mktemp("outside") / "o.bubbles.parquet").write_bytes(
        paths["plain"].read_bytes()
    )
    (folder / "link.bubbles.parquet").symlink_to(outside)
    answers, refused = {}, {}

    async def refusal(call, tool, **arguments):
        with pytest.raises(RefusedError) as error:
            await call(tool, **arguments)
        return str(error.value)

    async def talk():
        async with session(folder) as talking:
            agent = Agent(talking)
            for number, one in enumerate(agent_questions.QUESTIONS):
                of = [paths[name] for name in one.runs]
                answers[number] = await agent.answer(one.text, *of)
            loaded = await talking.call("load", paths=[str(paths["plain"])])
            run = loaded["run"]
            for name, tool, arguments in (
                ("outside", "load", {"paths": [str(outside)]}),
                ("above", "load", {"paths": [f"{folder}/../*/*.parquet"]}),
                ("link", "load", {"paths": [str(folder / "link*")]}),
                ("nothing", "load", {"paths": [str(folder / "nothing")]}),
                ("file", "load", {"paths": [str(paths["plain"])], "names": ["/etc/x.toml"]}),
                ("unknown", "why", {"run": "run99"}),
                ("change", "whatif", {"run": run, "changes": "--faster 2"}),
                ("column", "tasks", {"run": run, "group_by": ["host"]}),
                ("by", "kernels", {"run": run, "by": ["colour"]}),
                ("rows", "report", {"run": run, "rows": 5000}),
                ("missing", "report", {}),
            ):
                refused[name] = await refusal(talking.call, tool, **arguments)
            return await talking.tools(), loaded

    tools, loaded = asyncio.run(asyncio.wait_for(talk(), 120))
    return {"tools": tools, "answers": answers, "refused": refused, "loaded": loaded}


NUMBERED = list(enumerate(agent_questions.QUESTIONS))


def test_there_are_enough_questions():
    assert len(NUMBERED) >= 20
    assert sum(one.answer is None for _, one in NUMBERED) >= 3


@pytest.mark.parametrize(
    ("number", "asked"), NUMBERED, ids=lambda one: one.text if hasattr(one, "text") else str(one)
)
def test_a_question_is_answered_by_tools_alone(talked, number, asked):
    answer = talked["answers"][number]
    if asked.answer is None:
        assert isinstance(answer, Unknown)
        assert answer.reason
        assert answer.would_tell
    elif asked.within:
        assert answer == pytest.approx(asked.answer, rel=asked.within)
    else:
        assert answer == asked.answer


def test_tools_only_read_and_say_what_they_take(talked):
    tools = {tool.name: tool for tool in talked["tools"]}
    assert [*tools] == [tool.__name__ for tool in Tools(Runs()).all()]
    for tool in tools.values():
        assert tool.annotations.read_only_hint
        described = tool.description
        for argument in tool.input_schema["properties"]:
            assert f"{argument}: " in described, (tool.name, argument)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("outside", "is outside of what may be read here"),
        ("above", "is outside of what may be read here"),
        ("link", "is outside of what may be read here"),
        ("nothing", "no such file or folder"),
        ("file", "names are patterns here, and no files"),
        ("unknown", "'run99' is no run that is loaded"),
        ("change", "'--faster' asks nothing"),
        ("column", "group_by: 'host' is none of rank, step"),
        ("by", "by: 'colour' is none of stage, kind"),
        ("rows", "rows is 5000, where 1 to 200 may be"),
        ("missing", "run"),
    ],
)
def test_a_call_that_cannot_be_answered_is_refused_in_a_sentence(talked, name, sentence):
    assert sentence in talked["refused"][name]
    assert "Traceback" not in talked["refused"][name]


def test_loading_says_what_cannot_be_known(talked):
    about = {one["about"] for one in talked["loaded"]["cannot_answer"]}
    assert {"devices", "kernels", "mfu"} <= about <= set(ABOUT)


def test_lists_end_early_and_it_says_where():
    answer = limited({"schema": "s", "rows": [{"of": [*range(9)]}] * 30, "name": "n"}, 4)
    assert len(answer["rows"]) == 4
    assert answer["rows"][0]["of"] == [0, 1, 2, 3]
    assert answer["truncated"][0] == {"where": "rows[0].of", "shown": 4, "of": 9} or any(
        one == {"where": "rows", "shown": 4, "of": 30} for one in answer["truncated"]
    )
    long = limited({"rows": [{"text": "x" * 1000}] * 200}, 200)
    assert len(json.dumps(long)) <= MOST_CHARACTERS
    assert long["truncated"][0]["of"] == 200


def test_no_text_of_a_trace_reaches_an_agent_raw(tmp_path):
    tools = Tools(Runs())
    path = hostile(CANARY + "x" * 5000).save(tmp_path / "run.bubbles.parquet")
    run = tools.load([str(path)])["run"]
    said = [tools.report(run), tools.why(run), tools.tasks(run), tools.compare(run, run)]
    text = json.dumps(said, ensure_ascii=False)
    assert SHOWN.search(text.encode())
    assert RAW.search(text.encode()) is None
    assert "x" * 2000 not in text
    assert "more letters)" in text


def test_tasks_are_chosen_grouped_and_sorted():
    timeline = one_f_one_b()
    forwards = timeline.tasks.filter(kind="forward", rank=2)
    found = query(timeline, {"kind": ["forward"], "rank": [2]}, group_by=["step"])
    assert found["tasks"] == forwards.height
    lengths = forwards["end_ns"] - forwards["start_ns"]
    assert sum(row["total_ns"] for row in found["rows"]) == lengths.sum()
    longest = query(timeline, {}, sort_by="length_ns", rows=1)["rows"][0]["length_ns"]
    assert longest == (timeline.tasks["end_ns"] - timeline.tasks["start_ns"]).max()
    assert query(timeline, {}, at_least_ns=longest + 1)["of"] == 0


def test_the_oldest_run_makes_room(tmp_path):
    path = made().save(tmp_path / "run.bubbles.parquet")
    runs = Runs()
    names = [runs.load([str(path)], {})[0] for _ in range(MOST)]
    assert runs[names[0]] is not None  # now asked about last
    runs.load([str(path)], {})
    assert runs[names[0]] is not None
    with pytest.raises(BubblescopeError, match="no run that is loaded"):
        runs[names[1]]


def test_each_thing_that_may_be_unknown_is_said_of_some_run():
    found = {
        one.about
        for timeline in [*agent_questions.runs().values(), *agent_questions.unsure()]
        for one in unanswered(timeline)
    }
    assert found == set(ABOUT)


def test_the_skill_is_one_and_names_every_tool():
    text = skill()
    head = text.split("---\n")[1]
    assert head.startswith("name: bubblescope\ndescription: ")
    assert len(head.split("description: ")[1]) <= 1024  # as the format has it
    for tool in Tools(Runs()).all():
        assert f"`{tool.__name__}`" in text
    printed = subprocess.run(
        [sys.executable, "-m", "bubblescope", "mcp", "--skill"], capture_output=True, check=True
    )
    assert printed.stdout.decode() == text


def test_the_pages_steps_are_those_of_the_skill():
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    assert "SKILL.md" in page
    for schema in ("bubblescope.loaded/1", "bubblescope.tasks/1", "bubblescope.cannot_answer/1"):
        assert schema in page
    for about in ABOUT:
        assert f"| `{about}` |" in page


def test_nothing_else_loads_the_package():
    code = (
        "import sys, bubblescope.agents.tools, bubblescope.cli.mcp; assert 'mcp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_it_says_what_to_install(tmp_path):
    (tmp_path / "mcp.py").write_text("raise ImportError('hidden')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['bubblescope', 'mcp']\n"
        "from bubblescope.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"pip install 'bubblescope[mcp]'" in done.stderr
    assert (
        Path(ROOT / "pyproject.toml").read_text("utf-8").count('"mcp>=') == 2
    )  # and for the tests
