"""Files that a command will write: looked at before it works for minutes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ddip.errors import ConfigError


def refuse_unwritable(command: str, paths: list[str | None]) -> None:
    seen: dict[Path, str] = {}
    for name in paths:
        if not name:
            continue
        path = Path(name).absolute()
        if not path.parent.is_dir():
            raise ConfigError(f"{command}: {name}: there is no such folder")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{command}: {name}: it is there and is no file; expected a file's name")
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise ConfigError(f"{command}: {name}: nothing can be written there: {error.strerror}") from None
        if (same := path.resolve()) in seen:
            raise ConfigError(f"{command}: {name} would be written twice; expected two names")
        seen[same] = name
