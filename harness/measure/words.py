"""What measurements say of themselves, for records to state and for the auditor to expect.

Apart from the code that measures, which nobody has to load in order to judge.
"""

BLIND_SPOTS = (
    "whatever the process held before the baseline was taken",
    "copies inside freed-and-kept heap pages that were resident at the baseline",
    "copies made and dropped again between two readings",
    "bytes inside the declared arenas other than the planned ones",
    "files on a memory file system that are neither mapped nor open as memfd",
    "kernel buffers such as pipes and sockets, and the page cache",
    "memory of other processes and of devices",
    "clean pages of executable ELF files",
)
"""Where a copy would not be seen by a reading of ``/proc``; for a record to state."""

GPU_FACTS = ("gpu", "cuda_")
"""How the names of facts about GPUs and their driver begin."""
