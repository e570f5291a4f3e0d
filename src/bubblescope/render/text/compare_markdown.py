"""What changed between two runs as Markdown: for the summary of a CI job, or a comment on a change.

It is GitHub's Markdown (https://github.github.com/gfm/): tables, and parts that unfold.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from bubblescope.analysis.compare import GROUPS
from bubblescope.analysis.device_changes import GROUPS as DEVICE_GROUPS
from bubblescope.model import language
from bubblescope.model.plain_text import visible
from bubblescope.render.text.change_rows import cells
from bubblescope.render.text.compare_words import NOISE, TITLES, difference, headline, said_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.compare import Comparison
    from bubblescope.analysis.gate import Verdict

_ROWS: Final = 8
_TITLES: Final = TITLES | {
    "device": ("Device", "of a rank in a step, from its start to the next one's"),
    "detail": ("Exposed and idle time in detail", "of a rank"),
}
_MARKS: Final = {"failed": "❌", "not certain": "⚠️", "passed": "✅"}
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|~$&])")
"""What Markdown, HTML within it or a formula would take for more than a sign."""
_LINKED: Final = re.compile(r"@|#(?=\d)|:(?=/)|(?<=www)\.")
"""What GitHub makes a link of: a mention, an issue, an address."""


def markdown(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), *, everything: bool = False
) -> str:
    """Return a comparison as Markdown.

    Args:
        comparison: The runs.
        verdicts: What has become of conditions.
        everything: With all rows of all tables, none folded away.
    """
    limit = sys.maxsize if everything else _ROWS
    said = language.translated
    lines = [f"## {said('Pipeline comparison')}", "", f"**{told(headline(comparison))}**", ""]
    if verdicts:
        lines += _table(
            map(said, ("condition", "outcome", "measured")),
            (
                (plain(one.condition), f"{_MARKS[one.outcome]} {said(one.outcome)}", told(one.text))
                for one in verdicts
            ),
        )
    sides = zip("AB", comparison.labels, (comparison.before, comparison.after), strict=True)
    lines += _table(
        (said("run"), "", said("what")),
        ((letter, plain(label), told(said_of(side))) for letter, label, side in sides),
    )
    lines += [
        f"- {told('differs')}: {plain(difference(what, mine, its))}"
        for what, mine, its in comparison.differs
    ]
    lines += [f"- {told('note')}: {told(note.message)}" for note in comparison.notes]
    for group in (*GROUPS, *DEVICE_GROUPS):
        if changes := comparison.group(group):
            lines += _part(group, changes, limit, folded=group != "overall" and not everything)
    if any(change.interval for change in comparison.changes):
        lines += ["", told(NOISE)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, in one line."""
    one_line = " ".join(visible(text).split())
    escaped = _MARKUP.sub(r"\\\1", one_line)
    return _LINKED.sub(lambda found: f"&#{ord(found[0])};", escaped)


def told(text: str) -> str:
    """Return what people are told, in their language, as `plain` text."""
    return plain(language.translated(text))


def _part(group: str, changes: list[Change], limit: int, *, folded: bool) -> Iterator[str]:
    """Return the lines of a table, which unfolds when it is clicked on."""
    title, of = _TITLES[group]
    rows = ((told(change.name), *map(told, cells(change))) for change in changes[:limit])
    titles = (group if group != "overall" else " ", "A", "B", "change", " ", " ")
    table = _table([language.translated(one) for one in titles], rows)
    of = told(of + f", the {limit} largest of {len(changes)}" * (limit < len(changes)))
    if folded:
        summary = f"<details><summary>{told(title)}: {of}</summary>"
        yield from ("", summary, "", *table, "</details>")
    else:
        yield from ("", f"### {told(title)}", "", of, "", *table)


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> list[str]:
    first = list(head)
    lines = [first, ["---", *["---:" if len(first) > 3 else "---"] * (len(first) - 1)], *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]
