"""An append-only list that forks in O(1) and commits in O(new items)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class ForkableLog(Sequence[T], Generic[T]):
    """A shared base, of which this view sees the first ``_seen`` items, and a private tail.

    ``store`` makes the containers: ``list``, or a packed array for numbers (``token_log``).

    Forks append to their own tails. ``commit`` moves the tail into the base, cutting whatever
    another branch had put behind the items seen; views of the kept part stay valid. One
    branch at a time may commit (the engine runs one turn per session).
    """

    __slots__ = ("_base", "_seen", "_store", "_tail")

    def __init__(self, items: Iterable[T] = (), store: Callable[[Iterable[T]], Any] = list) -> None:
        self._store = store
        self._base: MutableSequence[T] = store(items)
        self._seen = len(self._base)
        self._tail: MutableSequence[T] = store(())

    def fork(self) -> ForkableLog[T]:
        """A view with the same items; its appends are not seen here, nor the other way."""
        twin: ForkableLog[T] = ForkableLog.__new__(ForkableLog)
        twin._store, twin._base, twin._seen = self._store, self._base, self._seen
        twin._tail = self._store(self._tail)
        return twin

    def append(self, item: T) -> None:
        """Add one item."""
        self._tail.append(item)

    def extend(self, items: Iterable[T]) -> None:
        """Add items."""
        self._tail.extend(items)

    def replace_last(self, item: T) -> None:
        """Put ``item`` in the place of the last one, which must not be committed yet."""
        self._tail[-1] = item

    def pick(self, positions: Sequence[int]) -> list[T]:
        """The items at ``positions``, all within the log."""
        if not self._tail and len(positions) > 1:
            return list(itemgetter(*positions)(self._base))
        return [self[at] for at in positions]

    def commit(self) -> None:
        """Move the tail into the shared base."""
        if self._tail:
            del self._base[self._seen :]
            self._base.extend(self._tail)
            self._seen = len(self._base)
            self._tail = self._store(())

    def __len__(self) -> int:
        return self._seen + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            stop = max(start, stop)
            own = self._tail[max(0, start - self._seen) : max(0, stop - self._seen)]
            return [*self._base[min(start, self._seen) : min(stop, self._seen)], *own]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"index {index} of a log of {len(self)} items")
        return self._base[at] if at < self._seen else self._tail[at - self._seen]

    def __iter__(self) -> Iterator[T]:
        for at in range(len(self)):
            yield self[at]


def token_log(items: Iterable[int] = ()) -> ForkableLog[int]:
    """A log of token ids at 4 bytes each."""
    return ForkableLog(items, lambda ids: array("i", ids))
