"""Entry points that the agent starts: `warm FD` (the parent that workers fork from) and `exec RANK INCARNATION NFDS`."""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    if sys.argv[1] == "warm":
        from ddip.worker import warm

        warm.run(int(sys.argv[2]))
    elif sys.argv[1] == "exec":
        begun = time.monotonic()
        from ddip.worker import born, warm

        warm.import_slow_modules(os.environ.get("DDIP_PRELOAD", "torch"))
        rank, incarnation, descriptors = (int(text) for text in sys.argv[2:5])
        numbers = [3 + index for index in range(descriptors)]
        for number in numbers:
            os.set_inheritable(number, False)
        born.live(rank, incarnation, dict(os.environ), numbers, {"start": "exec", "seconds": time.monotonic() - begun})


main()
