"""The c10d store of the group, hosted by rank 0 on a listener that the agent bound on loopback and holds.

torch's own TCPStore would listen on every interface; and a port chosen by the agent cannot be taken meanwhile.
"""

from __future__ import annotations

import sys
from typing import Any

_listener: int | None = None
_store: Any = None


def host_when_torch_is_loaded(listener: int | None) -> None:
    global _listener
    _listener = listener
    host_now()


def host_now() -> None:
    """Called again before each cell: torch may have been imported since."""
    global _store, _listener
    if _listener is None or "torch.distributed" not in sys.modules:
        return
    import os
    import socket
    from datetime import timedelta

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listener, _listener = _listener, None
    port = socket.socket(fileno=os.dup(listener)).getsockname()[1]
    _store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener,
        timeout=timedelta(seconds=60),
    )
