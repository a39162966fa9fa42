"""What a program or a library asks the loader for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def needed_by(file: Path) -> list[str]:
    """In the order in which they are asked for what the file itself does not have."""
    said = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


def takes_filesystem_from_torch(file: Path) -> bool:
    """libtorch_cpu exports functions of std::filesystem, of the compiler that it was built with; beside another one's, remove_all
    crashed in them. Whoever links torch has to ask the C++ library first, or have it inside."""
    wanted = subprocess.run(["nm", "-D", "--undefined-only", file], capture_output=True, text=True, check=True).stdout
    needed = needed_by(file)
    return "St10filesystem" in wanted and needed.index("libstdc++.so.6") > needed.index("libtorch_cpu.so")


def loads_all_of_torch(file: Path) -> bool:
    """Its CUDA half comes with libtorch.so, of which nobody names a symbol, so that linkers like to leave it out."""
    return "libtorch.so" in needed_by(file)
