"""Says so when the registry handed out a CUDA build of the pinned torch. Reads the version, never imports torch."""

import re
from importlib import util
from pathlib import Path

spec = util.find_spec("torch")
if spec is None or spec.origin is None:
    raise SystemExit("torch is not installed")
text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
if cuda := re.search(r"^cuda[^=\n]*= *['\"]([^'\"]+)", text, re.MULTILINE):
    print(f"Note: this registry's torch is the CUDA {cuda[1]} build. It works, but is large;")
    print(
        "      for the small one name PyTorch's CPU index in PIP_EXTRA_INDEX_URL, remove .venv, and make setup again."
    )
