"""Bring a process's own heap to rest before its pages are counted, and keep its pages small.

Runs inside the measured process. Knows nothing of who measures it.
"""

import ctypes
import gc

_PR_SET_THP_DISABLE = 41


def settle() -> bool:
    """Collect garbage, then give freed heap pages back to the kernel.

    Without the trim, pages of dropped objects stay resident and can hide a new copy of the same
    size.

    Returns:
        Whether the C library could trim; only glibc can.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim.argtypes = [ctypes.c_size_t]
    trim.restype = ctypes.c_int
    trim(0)
    return True


def keep_small_pages() -> bool:
    """Have the kernel back this process, and its children, with small pages only.

    Where transparent huge pages are always on, one touched byte can make 2 MiB resident, now or
    whenever the kernel gets round to it, and growth then means little. Call before allocating.

    Returns:
        Whether the kernel took the setting.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    library.prctl.restype = ctypes.c_int
    return bool(library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0)
