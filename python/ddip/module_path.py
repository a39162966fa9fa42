"""Which folders with modules workers have to be told of: all of ours but those that their Python knows by itself."""

from __future__ import annotations

import os
import site
import sys
import sysconfig


def to_tell() -> list[str]:
    known = pythons_own()
    return [path for path in dict.fromkeys(sys.path) if path and not is_below(os.path.abspath(path), known)]


def pythons_own() -> set[str]:
    """Not its whole prefix: that may be /usr, and the user's code in /usr/src."""
    library = sysconfig.get_path("stdlib")
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    folders = {sysconfig.get_path(name) for name in ("platstdlib", "purelib", "platlib")}
    return {library, os.path.join(os.path.dirname(library), archive), *folders, *site.getsitepackages()}


def is_below(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
