"""A process that computes runs: one JSON object a line in, one out. It ends when its input does, and with who started it."""

from __future__ import annotations

import ctypes
import json
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # also in the middle of a run
    import torch

    from ddip.study.one_run import computed
    from ddip.study.settings import Run, Settings

    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, object]
        try:
            answer = {"results": computed(Run(**asked["run"]), Settings(**asked["settings"]))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
        print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
