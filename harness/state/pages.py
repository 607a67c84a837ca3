"""The one allocator: hands out pages of a pool, first freed first, and takes them back.

All of its state lies in three declared tensors, so that their bytes are its snapshot. Knows no
position, no buffer and no session.

    free_list   [N - 1]  ring of free pages from free_head on; 0 where a page was handed out
    free_head   [1]      index in the ring of the next page
    live        [N]      1 for a page handed out, 0 for a free one and for page 0

    page 0 is the sentinel "none": in no free list, never live.

Shape legend: N pages, page 0 included.
"""

from collections.abc import Mapping

import numpy as np
import torch

from harness.state.errors import CapacityError, DamagedStateError
from harness.state.ownership import PoolTables
from harness.state.table import HostTable, IntArray


class PagePool:
    """Owns N - 1 pages over three declared tensors."""

    def __init__(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Bind ``{name}.free_list``, ``{name}.free_head`` and ``{name}.live``, and rebuild them."""
        self.name = name
        self._free_list = HostTable(tensors[f"{name}.free_list"])
        self._free_head = HostTable(tensors[f"{name}.free_head"])
        self._live = HostTable(tensors[f"{name}.live"])
        self.num_pages = self._live.host.size
        self._head = 0
        self._num_available = 0
        self.rebuild()

    @property
    def num_available(self) -> int:
        """Pages that can still be handed out."""
        return self._num_available

    def rebuild(self) -> None:
        """Every page but 0 is free again, in the order 1 to N - 1."""
        self._free_list.fill(np.arange(1, self.num_pages, dtype=np.int64))
        self._live.fill(0)
        self._set_head(0)
        self._num_available = self.num_pages - 1

    def read_back(self) -> None:
        """Take over the declared tensors' values, after they were restored bytewise.

        Raises:
            DamagedStateError: When the free list has no head.
        """
        for table in (self._free_list, self._free_head, self._live):
            table.read_back()
        head = int(self._free_head.host[0])
        if not 0 <= head < self.num_pages - 1:
            raise DamagedStateError(
                f"the free list of pool {self.name} is damaged",
                expected=f"its head from 0 to {self.num_pages - 2}",
                got=str(head),
            )
        self._head = head
        self._num_available = int(np.count_nonzero(self._free_list.host))

    def require(self, num_pages: int) -> None:
        """Check that so many pages are free.

        Raises:
            CapacityError: When they are not.
        """
        if num_pages > self._num_available:
            raise CapacityError(
                f"pool {self.name} is exhausted",
                expected=f"{num_pages} free pages",
                got=f"{self._num_available} of {self.num_pages - 1}",
                hint="derive the plan for more positions, or for more rows in one step",
            )

    def allocate_pages(self, num_pages: int) -> IntArray:
        """Hand out pages from the front of the free list, in its order.

        Raises:
            CapacityError: When too few are free; nothing was taken.
            DamagedStateError: When the free list holds what cannot be free; nothing was taken.
        """
        self.require(num_pages)
        if not num_pages:
            return np.empty(0, dtype=np.int64)
        places = self._places(self._head, num_pages)
        pages: IntArray = self._free_list.host[places]
        if (pages < 1).any() or (pages >= self.num_pages).any() or self._live.host[pages].any():
            raise DamagedStateError(
                f"the free list of pool {self.name} is damaged",
                expected=f"pages from 1 to {self.num_pages - 1} that are not live",
                got=str(pages[:16].tolist()),
            )
        self._free_list.put(places, 0)
        self._live.put(pages, 1)
        self._set_head((self._head + num_pages) % (self.num_pages - 1))
        self._num_available -= num_pages
        return pages

    def free_pages(self, pages: IntArray) -> int:
        """Take back, in this order, those of ``pages`` that are live; the others are ignored.

        Returns:
            How many were taken back.
        """
        known = pages[(pages > 0) & (pages < self.num_pages)]
        live = known[self._live.host[known] != 0]
        _, first = np.unique(live, return_index=True)
        freed = live[np.sort(first)]
        places = self._places(self._head + self._num_available, freed.size)
        self._free_list.put(places, freed)
        self._live.put(freed, 0)
        self._num_available += freed.size
        return int(freed.size)

    def measured(self) -> PoolTables:
        """The declared tensors' own values, for an ownership report."""
        return PoolTables(
            free_list=self._free_list.measured(),
            live=self._live.measured(),
            free_head=int(self._free_head.measured()[0]),
        )

    def _places(self, begin: int, count: int) -> IntArray:
        return np.arange(begin, begin + count, dtype=np.int64) % (self.num_pages - 1)

    def _set_head(self, head: int) -> None:
        self._head = head
        self._free_head.fill(head)
