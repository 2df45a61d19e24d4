from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, overload

class Numbers(Sequence[float]):
    def __init__(self, values: Iterable[float] = ()) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...

class Group:
    key: tuple[Any, ...]
    rows: int
    values: Numbers
    def __getitem__(self, index: SupportsIndex) -> float | None: ...

class Grouping:
    is_full: bool
    def __init__(
        self,
        key: tuple[int, int],
        columns: Sequence[tuple[str, int]],
        *,
        collected: int = -1,
        required: int = -1,
        most: int = ...,
        least: float = ...,
    ) -> None: ...
    def groups(self) -> list[Group]: ...

def ordered(parts: Iterable[Numbers]) -> Numbers: ...
def group(rows: Iterable[tuple[Any, ...]], *groupings: Grouping) -> None: ...
