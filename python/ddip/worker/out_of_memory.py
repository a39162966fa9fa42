"""An error for want of memory says how much there may be: allocators do not."""

from __future__ import annotations

import os
import resource

LIMITS = {"RLIMIT_AS": "address space", "RLIMIT_DATA": "data"}


def explain(error: BaseException) -> str:
    """One line for the end of its traceback; empty for any other error. A GPU's allocator tells its limit itself."""
    if not isinstance(error, MemoryError) and not (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    ):
        return ""
    limits = []
    for name, what in LIMITS.items():
        soft = resource.getrlimit(getattr(resource, name))[0]
        if soft != resource.RLIM_INFINITY:
            limits.append(f"{soft >> 20} MiB of {what} ({name})")
    if not limits:
        limits.append(f"the machine's {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 20} MiB")
    return f"out of memory: this process may have {' and '.join(limits)}"
