"""What a program or a library asks the loader for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def asks_torch_before_the_cpp_library(file: Path) -> bool:
    """libtorch_cpu exports functions of std::filesystem, of the compiler that it was built with; beside another one's, remove_all
    crashed in them. Whoever links torch has to ask the C++ library first."""
    said = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
    torch = [place for place, name in enumerate(needed) if name.startswith("libtorch")]
    assert torch, f"{file} does not link torch"
    return needed.index("libstdc++.so.6") > torch[0]
