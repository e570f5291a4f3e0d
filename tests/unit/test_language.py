"""Other languages: every text has its translation, and commands leave no English behind."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

import re
import subprocess
import sys
from gettext import GNUTranslations
from io import BytesIO, StringIO
from string import Formatter

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from bubblescope.analysis.idle.causes import Cause
from bubblescope.cli import COMMANDS, GROUPS, cli
from bubblescope.model import language
from bubblescope.render.text.plain_console import PlainConsole
from bubblescope.render.text.sections import table_of
from bubblescope.render.text.translated import Verbatim, translated
from bubblescope.render.text.wide_letters import breaks
from bubblescope.schedules import generate
from catalogues.catalogue import ambiguous, as_mo, fields, path_of, problems, read
from catalogues.texts import texts
from injected import Fault, Job

OTHERS = [one for one in language.LANGUAGES if one != language.ENGLISH]
ENGLISH = re.compile(r"(?<![\w./`'-])[a-z]{2,} [a-z]{2,}(?![\w/=])")
"""Two words of a sentence, which names, paths and commands are not."""
NAMES = {"longest span", "over ideal", "no wait", "zero bubble", "nsys profile"}
"""Rates, which are called as JSON and papers call them, and a command."""
SAMPLES = {
    ",": "1,234",
    "ns": "5.250 ms",
    "r": "'q7'",
    "listed": "ranks 0, 2",
    "counted": "3 zebra",
    "numbers": "0, 2",
    "command_path": "bubblescope report",
}
"""Values by what they look like."""


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def left_in_english(printed: str) -> set[str]:
    return set(ENGLISH.findall(re.sub(r"bubblescope \w+", "", printed))) - NAMES


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = Job(generate("1f1b", 4, 8))
    timeline = made.play(Fault(Cause.SLOW_RANK, slow={(0, 1): 1.4}))
    return str(timeline.save(tmp_path_factory.mktemp("run") / "run.parquet"))


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("dualpipev · 4 ranks · 2 steps", "dualpipev · 4 个 rank · 2 步"),
        (
            " (variant: MindSpeed's, last backwards whole), 4 devices, split backward",
            "（变体：MindSpeed 的实现，最后几个反向不拆分），4 个设备，反向拆分",
        ),
        ("88 ranges, 80 communication operators", "88 个范围，80 个通信算子"),
        ("8 devices · AMD Instinct MI300X", "8 个设备 · AMD Instinct MI300X"),
        ("needs: ", "需要："),
    ],
)
def test_what_is_put_together_reads_as_one_sentence(english, chinese):
    assert language.translated(english, "zh") == chinese


def test_a_title_is_divided_only_where_it_is_wider_than_its_column():
    table = table_of("mostly idle for", "idle time")
    table.add_row("host, unknown", "1 ms")
    table.add_row("communication", "2 ms")
    with language.spoken("zh"):
        wide = translated(table)
    assert [column.header.plain for column in wide.columns] == ["空闲主要由于", "空闲时间"]
    short = table_of("mostly idle for")
    short.add_row("3.0")
    with language.spoken("zh"):
        assert "\n" in translated(short).columns[0].header.plain


@pytest.mark.parametrize("other", OTHERS)
def test_no_text_of_the_code_lacks_its_translation_or_a_value(other):
    assert list(problems(read(other))) == [], "`python -m catalogues` lists them too"


@pytest.mark.parametrize("other", OTHERS)
def test_programs_read_what_people_edit(other):
    with path_of(other).with_suffix(".mo").open("rb") as file:
        written = GNUTranslations(file)._catalog
    made = GNUTranslations(BytesIO(as_mo(read(other))))._catalog
    assert written | {"": made[""]} == made, "its head, which names who made it, aside"


def test_a_new_module_is_looked_at_without_being_named_anywhere(tmp_path):
    (tmp_path / "new.py").write_text(
        '"""Describes itself."""\nimport re\nPATTERN = re.compile("a b or c d")\n'
        'def f(lost, of, name):\n    """Describe it."""\n'
        '    raise ValueError(f"{lost:,} of {len(of)} ranks are lost" + f", says {name!r}")\n'
    )
    assert list(texts(tmp_path)) == ["{lost:,} of {of_count:,} ranks are lost, says {name!r}"]


def sample(template: str) -> tuple[str, dict[str, str]]:
    """Return a text with values in the places of its placeholders, and the values by name."""
    written, values = "", {}
    for at, (literal, field, spec, how) in enumerate(Formatter().parse(template)):
        written += literal
        if field is not None:
            told = spec or how or ("ns" if "_ns" in field else field)
            apart = literal or not at  # else nothing tells where the value before ends
            values[field] = SAMPLES.get(told, f"v{at}x" if apart else "")
            written += values[field]
    return written, values


@pytest.mark.parametrize("other", OTHERS)
def test_a_text_with_values_is_known_again(other):
    catalogue = {str(one.id): str(one.string) for one in read(other) if one.id}
    wrong = []
    for template, said in catalogue.items():
        if not fields(template) or "" in fields(template):
            continue
        written, values = sample(template)
        shown = {name: language.translated(value, other) for name, value in values.items()}
        bare = re.sub(r"\{(\w+)[!:][^}]*\}", r"{\1}", said)
        if language.translated(written, other) != bare.format(**shown):
            wrong.append((template, language.translated(written, other)))
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    [
        ("report", "-q", "RUN"),
        ("report", "-q", "--all", "RUN"),
        ("why", "-q", "RUN"),
        ("whatif", "-q", "RUN"),
        ("whatif", "-q", "--without", "slow rank", "RUN"),
        ("stragglers", "-q", "RUN"),
        ("compare", "-q", "RUN", "RUN"),
        ("info", "-q", "RUN"),
        ("names", "RUN"),
        ("kernels", "RUN"),
        ("formats",),
        ("simulate", "--stages", "4", "--microbatches", "8", "--schedule", "zb-h1"),
        ("simulate", "--compare", "1f1b,zb-h1", "--stages", "4", "--microbatches", "8"),
    ],
    ids=" ".join,
)
def test_what_a_command_prints_leaves_no_english(run, command, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")  # whole sentences
    monkeypatch.chdir(tmp_path)  # for the pictures that some write
    printed = invoke("--lang", "zh", *(run if part == "RUN" else part for part in command))
    assert re.search("[\u4e00-\u9fff]", printed)
    assert left_in_english(printed) == set()


@pytest.mark.parametrize("name", sorted({one for group in GROUPS.values() for one in group}))
def test_helps_are_translated(name):
    assert name in COMMANDS
    _, printed = invoke("--lang", "zh", name, "--help").split("示例：")[0].split("\n", 1)
    assert left_in_english(" ".join(printed.split())) - {"python train", "training job"} == set()
    assert all(cell_len(line) <= 80 for line in printed.splitlines())


def test_the_option_may_stand_at_either_place_and_json_stays_english(run):
    before, behind = (
        invoke("--lang", "zh", "report", "-q", run),
        invoke("report", "-q", run, "--lang", "zh"),
    )
    assert before == behind
    language.use(language.ENGLISH)
    english = invoke("report", "--json", "-q", run)
    assert invoke("--lang", "zh", "report", "--json", "-q", run) == english
    assert "首要原因是" in invoke("why", "--json", "-q", "--lang", "zh", run)


@pytest.mark.parametrize(
    ("variables", "spoken"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "C"}, "en"),
        ({"LANG": "C", "LC_ALL": "zh_TW"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "zh"}, "zh"),
    ],
)
def test_the_environment_chooses_as_posix_has_it(variables, spoken):
    assert language.of_environment(variables) == spoken


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "/no/such"), "错误   /no/such：没有这样的文件或文件夹，作为模式也没有匹配"),
        (("report",), "错误   缺少参数 'PATH...'。（见 `bubblescope report --help`）"),
        (("nothing",), "错误   没有命令 'nothing'。（见 `bubblescope --help`）"),
        (
            ("report", "--steps", "x", "y"),
            "错误   '--steps' 的值无效：'x' 不符合 3、2:5 或 0,4:6 这样的写法",
        ),
    ],
)
def test_a_process_refuses_in_the_language_of_its_environment(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "bubblescope", *arguments],
        env={"LC_ALL": "zh_CN.UTF-8", "PYTHONPATH": ":".join(sys.path), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.replace(" （", "（").startswith(said)


def test_english_reads_no_catalogue(run):
    language._catalogue.cache_clear()
    assert "First" not in invoke("report", "-q", run)
    assert language.translated("nothing to translate") == "nothing to translate"
    assert language._catalogue.cache_info().misses == 0


def shown(*renderables: object, width: int = 80) -> list[str]:
    out = StringIO()
    PlainConsole(file=out, width=width, color_system=None).print(*renderables)
    return out.getvalue().splitlines()


def test_columns_line_up_and_names_of_traces_stay():
    table = table_of("stage", "share", left=("stage",))
    table.add_row("exposed communication", "1.00 %")
    table.add_row(Verbatim("exposed communication"), "100.00 %")
    language.use("zh")
    head, first, second = shown(table)
    assert first.startswith("未掩盖通信")
    assert second.startswith("exposed communication")
    ends = [cell_len(line.rstrip()) for line in (head, first, second)]
    assert ends[0] == ends[1] == ends[2]


def test_a_long_chinese_line_breaks_between_letters_and_never_before_what_closes():
    said = "各 rank 没有共同的时钟，因此不跨 rank 比较。" * 4
    assert breaks("各 rank 没有共同的时钟。", 12) == [9]
    language.use("zh")
    lines = shown(Text(said), width=20)
    assert "".join("".join(lines).split()) == "".join(said.split())
    assert all(15 <= cell_len(line) <= 20 for line in lines[:-1])
    assert not any(line[0] in "，。" for line in lines)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "zb-v, 4 devices, 8 micro-batches, stages in a V of 2 chunks, split backward",
            "zb-v，4 个设备，8 个微批次，各阶段按 V 形排布，每个设备 2 个模型块，反向拆分",
        ),
        (
            "8 micro-batches, two opposite copies of 2 chunks",
            "8 个微批次，方向相反的两份，每个设备 2 个模型块",
        ),
        ("3 steps of 5.2 ms", "3 步，每步 5.2 ms"),
    ],
)
def test_texts_put_together_mean_what_their_parts_mean(english, chinese):
    assert language.translated(english, "zh") == chinese


PLAIN = st.sampled_from(["q7", "gpu-03", "/a/b.json", "4,096", "12.5 ms", "x1y", "-3"])
"""What must be shown as it is: names, paths and measures."""


@given(data=st.data())
def test_no_name_and_no_number_is_lost_or_made_whatever_is_said(data):
    """Words of texts with names and numbers among them, in any order: much of it means nothing."""
    words = sorted(language._catalogue("zh")._words)
    pieces = data.draw(st.lists(st.one_of(PLAIN, st.sampled_from(words)), max_size=9))
    text = " ".join(pieces)
    shown = language.translated(text, "zh")
    for one in PLAIN.elements:
        alone = re.compile(rf"(?<![\w.,/-]){re.escape(one)}(?![\w/-])", re.ASCII)
        assert len(alone.findall(shown)) == len(alone.findall(text)), (text, shown)


@given(text=st.text(alphabet="ab q7:,.· {}()'\"\n", max_size=40))
def test_what_means_nothing_is_shown_as_it_is(text):
    assert language.translated(text, "zh") == text


def test_texts_that_nothing_tells_apart_say_the_same():
    said = {"{lost} or {found}": "{found} {lost}", "{a} or {b}": "{b} {a}"}
    assert list(ambiguous(said)) == []
    assert list(ambiguous(said | {"{x} or {y}": "{x} {y}"})) != []


def test_what_nobody_has_translated_stays_an_english_sentence():
    for text in ("frobnicated widgets are seldom seen", "a 3 b", "/data/my own run/trace.json"):
        assert language.translated(text, "zh") == text
