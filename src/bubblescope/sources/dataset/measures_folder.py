"""Where the measures of a dataset lie: what every question asks of all of its steps, worked out once.

    RUN/measures/0f1e2d3c4b5a6978/clocks.values    how its clocks are corrected
    RUN/measures/0f1e2d3c4b5a6978/steps.values     what its steps tell, such as when ranks were in each

They are of a dataset as it is now, by this version: of one that traces are added to, and for another
version, they are another folder. Those that are missing or damaged are worked out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.stored_values import DamagedError, decoded, encoded
from bubblescope.sources.dataset.derived_folder import folder_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

SCHEMA: Final = "bubblescope.measures/3"
"""Name and version of what they are, described in docs/dataset.md."""

FOLDER: Final = "measures"


def folder_of(catalogue: Catalogue) -> str:
    """Return the folder of the measures of a dataset, within it."""
    known = msgspec.json.encode((catalogue.parts, catalogue.steps, catalogue.run))
    return folder_within(FOLDER, SCHEMA, [known])


class Measures(msgspec.Struct, frozen=True):
    """The measures of a dataset, which are there or are to be made.

    Attributes:
        store: Where the dataset lies.
        folder: Of them, within it.
        kept: Whether those that are not there are written.
    """

    store: Store
    folder: str
    kept: bool = False

    @classmethod
    def of(cls, store: Store, catalogue: Catalogue, *, kept: bool = False) -> Self:
        """Return those of a dataset."""
        return cls(store.anywhere(), folder_of(catalogue), kept)

    def found(self, name: str, kinds: Sequence[type]) -> Any:
        """Return some that are there; None if they are missing or damaged.

        Args:
            name: Of them.
            kinds: As of `bubblescope.model.stored_values.decoded`.
        """
        try:
            return decoded(self.store.read(self._file(name)), kinds)
        except (OSError, DamagedError):
            return None

    def keep(self, name: str, value: Any, kinds: Sequence[type]) -> None:
        """Write some, if they are to be kept.

        Args:
            name: As of `found`.
            value: What they are.
            kinds: Likewise.

        Raises:
            OSError: They cannot be written.
        """
        if self.kept:
            self.store.write(self._file(name), encoded(value, kinds))

    def _file(self, name: str) -> str:
        return f"{self.folder}/{name}.values"
