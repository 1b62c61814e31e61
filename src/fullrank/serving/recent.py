"""Recent: a cache of the values that were used last, by key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """At most `most` values, those that were used last. Safe from many threads."""

    def __init__(self, most: int):
        self.most = most
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made where there is none; of two threads that make it the first one's is kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        fresh = make()
        with self._lock:
            first = self._kept.setdefault(key, fresh)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return first
