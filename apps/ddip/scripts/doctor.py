"""What `ddip doctor` asks a Python: one JSON object. Nothing here may fail: what is missing is simply not in it."""

import importlib.metadata
import json
import os
import platform
import sys
import sysconfig


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def about_torch():
    # As in the warm parent: its thread count is the one that decides whether workers may be forked.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    try:
        import torch
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found = {
        "version": torch.__version__,
        "cxx11_abi": bool(torch.compiled_with_cxx11_abi()),
        "cuda": torch.version.cuda,
        "threads": len(os.listdir("/proc/self/task")),
        "cuda_touched": torch.cuda.is_initialized(),
    }
    try:
        import torch.distributed

        found["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    except Exception:
        found["gloo"] = False
    return found


def about_ddip():
    try:
        import ddip._client
        import ddip._worker
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"folder": os.path.dirname(ddip._client.__file__)}


print(
    json.dumps(
        {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "abi": sysconfig.get_config_var("SOABI"),
            "executable": sys.executable,
            "torch": about_torch(),
            "ddip": about_ddip(),
            "packages": {
                name: version(name) for name in ("ipython", "ipykernel", "jupyterlab", "cloudpickle", "numpy")
            },
        }
    )
)
