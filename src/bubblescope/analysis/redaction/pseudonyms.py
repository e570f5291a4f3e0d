"""Which texts of a trace stay as they are, and what the others are called instead."""

from __future__ import annotations

import hashlib
import re
import secrets
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.mfu.peaks import peak_flops
from bubblescope.analysis.numbered_names import NUMBERS
from bubblescope.analysis.redaction.vocabulary import only, own_texts, own_words, public_words
from bubblescope.model.errors import ScheduleError
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.names.group_roles import ROLES, role_of_group
from bubblescope.names.job_trace_operations import TYPES
from bubblescope.names.parser import NameParser
from bubblescope.names.phase_words import phase_word
from bubblescope.schedules import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DIGEST_BYTES: Final = 8
"""Among a million names, two share a pseudonym once in 37 million runs."""
_KEY_BYTES: Final = 32

_PLAIN: Final = re.compile(r"[ -~]*")
"""Characters that public names are made of."""
_SIZE: Final = re.compile(r"\d{4,}")
"""A number that may be a size of a model; tiles of kernels are smaller."""
_INSTRUCTION: Final = re.compile(
    r"16816|1688|16832|16864|f32f32|sm_?\d+|BFloat16|bfloat16|v\d{4,5}\b"
)
"""Numbers in names of kernels and calls that are none: shapes of instructions, types, versions."""
_COPY: Final = r"(?:[HDP]to[HDP])?(?: (?:pinned|pageable|device|unified))?"
_CALL: Final = re.compile(
    r"(?:aten|c10d|prims|quantized|_c10d_functional|autograd|torch|nccl|hccl)::?[\w:]+(?:: [\w:]+)?"
    r"|(?:cuda|cu|hip|aclrt|aclnn|nccl|hccl)[A-Z]\w*"
    rf"|\w*Backward\d|(?:Memcpy |Memset ?)?{_COPY}(?: and {_COPY})*"
    r"|<backward op>|ProfilerStep"
)
"""Operators of PyTorch, calls of devices' runtimes, and kinds of copy."""
_NUMBERED: Final = re.compile(r"(?s)(.*?)(?:(, (?:seq|op_id) = \d+)(.*)|(#\d+))")
"""What is numbered anew each time, and the number; what stands behind that may be shapes."""
_VERSION: Final = re.compile(r"\d{1,8}(?:\.\d{1,8}){0,5}")
_GROUP: Final = re.compile(r"\d{1,6}(?: ranks)?")
_TOKEN: Final = re.compile(r'[^ ,;()"]+')
_NUMBER: Final = re.compile(r"[+\-±#]?\d[\d.,:%]*(?:e[+-]?\d+)?")
_IN_SENTENCES: Final = re.compile(r"[A-Za-z\-_.=\[\]:'`&–…×µ→<>+%|?!#^*]+")
_GIVEN: Final = re.compile(rf"[a-z]+-[0-9a-f]{{{2 * _DIGEST_BYTES}}}(?:_\d+|_\*)?(?:\.\w+)?")
_NUMBERS: Final = re.compile(NUMBERS)
_UNKNOWN_HOST: Final = "unknown"


class Pseudonyms:
    """Gives each text that must not be read a name that says nothing, the same wherever it occurs.

    A pseudonym is a word for what is named, and a keyed digest (BLAKE2b, RFC 7693) of the text: without
    the key nobody can find out whether a guess is right.

    Args:
        key: What the digests depend on, of any length; chance if left out.

    Attributes:
        given: Pseudonym -> text, of all that were given.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = hashlib.blake2b(key or secrets.token_bytes(_KEY_BYTES), digest_size=64).digest()
        self.given: dict[str, str] = {}
        self._parser = NameParser()
        self._in_sentences: dict[str, str] = {}

    def instead(self, what: str, text: str) -> str:
        """Return the pseudonym of a text.

        Args:
            what: A word for what it names, in small letters.
            text: The text.
        """
        given = f"{what}-{self._digest(text)}"
        self.given[given] = text
        return given

    def _digest(self, text: str) -> str:
        secret = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(secret, digest_size=_DIGEST_BYTES, key=self._key).hexdigest()

    def host(self, text: str) -> str:
        """Return what stands for the name of a machine."""
        return text if text == _UNKNOWN_HOST else self.instead("host", text)

    def path(self, text: str) -> str:
        """Return what stands for a path."""
        return self.instead("trace", text)

    def task(self, text: str) -> str:
        """Return the name of a task: as it is where a grammar knows it for a pass or a phase."""
        known = text in TYPES or self._means(text) or communication_kernel(text) is not None
        return self._kept("task", text, known=known)

    def kernel(self, text: str) -> str:
        """Return the name of a kernel: as it is where public libraries use all of its words."""
        return self._kept("kernel", text, known=_SIZE.search(_INSTRUCTION.sub("", text)) is None)

    def call(self, text: str) -> str:
        """Return the name of an operator, a call or a range of the host; what numbers it stays.

        What `emit_nvtx` writes behind the number, such as shapes, becomes a pseudonym.
        """
        found = _NUMBERED.fullmatch(text)
        if found is not None:
            name, number, more, step = found.groups()
            number = number or step
            return f"{self.call(name)}{number}{' ' + self.instead('more', more) if more else ''}"
        known = _CALL.fullmatch(text) is not None or self._means(text)
        return self._kept("call", text, known=known, instead=self._numbered)

    def _numbered(self, what: str, text: str) -> str:
        """Return the pseudonym of a text, which differs in a number from those of texts that do so too.

        Answers name such together (`numbered_names`), and that is to be so of pseudonyms as well.
        """
        shape = _NUMBERS.sub(r"\1*\2", text)
        if shape == text:
            return self.instead(what, text)
        together = f"{what}-{self._digest(shape)}"
        given = f"{together}_{int(self._digest(text), 16)}"
        self.given |= {given: text, f"{together}_*": shape}
        return given

    def _means(self, text: str) -> bool:
        return bool(self._parser.parse(text)) or phase_word(text) is not None

    def group(self, text: str) -> str:
        """Return the name of a group of ranks: as it is where it is a number."""
        return text if _GROUP.fullmatch(text) else self.instead("group", text)

    def described(self, text: str) -> str:
        """Return how a framework describes a group: as it is where that tells the group's role."""
        return self._kept("group", text, known=role_of_group(text) is not None)

    def role(self, text: str) -> str:
        """Return the role of a group: as it is where it is made of known ones."""
        known = all(part in ROLES for part in text.split("_"))
        return text if known else self.instead("role", text)

    def module(self, text: str) -> str:
        """Return what stands for a module of the model."""
        return self.instead("module", text)

    def device(self, text: str) -> str:
        """Return the name of a device: as it is where it is that of a product with a known peak."""
        return text if peak_flops(text) is not None else self.instead("device", text)

    def schedule(self, text: str) -> str:
        """Return the name of a schedule: as it is where it is a known one."""
        try:
            named(text)
        except ScheduleError:
            return self.instead("schedule", text)
        return text if _PLAIN.fullmatch(text) else self.instead("schedule", text)

    def version(self, text: str) -> str:
        """Return a version: as it is where it is made of numbers."""
        return text if _VERSION.fullmatch(text) else self.instead("version", text)

    def own(self, text: str) -> str:
        """Return a text that is bubblescope's own; any other becomes a pseudonym."""
        return text if text in own_texts() else self.instead("text", text)

    def _kept(
        self,
        what: str,
        text: str,
        *,
        known: bool,
        instead: Callable[[str, str], str] | None = None,
    ) -> str:
        if text in own_texts() and len(text) > 1:
            return text
        if known and _PLAIN.fullmatch(text) and "/" not in text and only(text, public_words()):
            return text
        return (instead or self.instead)(what, text)

    def column(self, texts: pl.Series, rule: Callable[[str], str]) -> pl.Series:
        """Return a column of texts, each distinct one looked at once; null stays null."""
        distinct = texts.drop_nulls().unique().to_list()
        return texts.replace_strict(
            distinct, [rule(text) for text in distinct], return_dtype=pl.String, default=None
        )

    def learn(self, paths: Iterable[str], hosts: Iterable[str]) -> None:
        """Take note of paths and hosts, which sentences say as well."""
        for text in paths:
            self._in_sentences[text] = self.path(text)
            if name := PurePath(text).name:
                self._in_sentences[name] = self.path(name)
        self._in_sentences |= {text: self.host(text) for text in hosts if text}
        self.__dict__.pop("_learnt", None)

    @cached_property
    def _learnt(self) -> re.Pattern[str] | None:
        told = sorted(filter(self._unread, self._in_sentences), key=len, reverse=True)
        return (
            re.compile("|".join(rf"(?<!\w){re.escape(one)}(?!\w)" for one in told))
            if told
            else None
        )

    @staticmethod
    def _unread(text: str) -> bool:
        return text.lower() not in own_words()

    def sentence(self, text: str) -> str:
        """Return a sentence of which every word is one that bubblescope itself says, or a pseudonym."""
        if text in own_texts():
            return text
        if self._learnt is not None:
            text = self._learnt.sub(lambda found: self._in_sentences[found[0]], text)
        return _TOKEN.sub(lambda found: self._token(found[0]), text)

    def _token(self, token: str) -> str:
        bare = token.strip(".:'`")
        if not bare or _NUMBER.fullmatch(bare) or (_GIVEN.fullmatch(bare) and self._gave(bare)):
            return token
        if _IN_SENTENCES.fullmatch(bare) and only(bare, own_words()):
            return token
        return token.replace(bare, self.instead("name", bare))

    def _gave(self, text: str) -> bool:
        return text in self.given
