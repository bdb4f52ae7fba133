"""What never changes again is written once."""

from __future__ import annotations

import copy
from typing import Any


class Unchanging(dict[str, Any]):
    """A part of a learner's state that will never change, as long as this very object is handed out.

    It is a dictionary like any other. Only who stores states treats it otherwise: it is written once, to a file of its
    own, and referred to by its hash from then on.
    """

    digest: str | None = None
    """Of the file that holds it; who has stored it notes that here."""

    def __copy__(self) -> Unchanging:
        return Unchanging(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Unchanging:
        """A copy may be changed, so it has not been stored yet."""
        return Unchanging(copy.deepcopy(dict(self), memo))
