"""What `%load_ext ddip` puts into a notebook or a terminal: the magics, %autodip's eye on every cell, and completion."""

from __future__ import annotations

from typing import Any

from ddip.errors import ConfigError, PeerLost, TimedOut
from ddip.magics import remote_completion
from ddip.magics.dip_magics import OWN_MAGICS, DipMagics
from ddip.magics.explained import ask_without_a_body


def load(shell: Any) -> None:
    if getattr(shell, "_ddip_magics", None) is not None:
        return
    magics = DipMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.extend([magics.autodip_switch.send_to_workers, ask_without_a_body])
    remote_completion.install(shell, magics)
    shell._ddip_magics = magics


def unload(shell: Any) -> None:
    magics = getattr(shell, "_ddip_magics", None)
    if magics is None:
        return
    leave_app(magics)
    for transformer in (magics.autodip_switch.send_to_workers, ask_without_a_body):
        shell.input_transformers_cleanup.remove(transformer)
    remote_completion.uninstall(shell)
    for name in OWN_MAGICS:
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    shell._ddip_magics = None


def leave_app(magics: DipMagics) -> None:
    """Of the notebook's group, which lives on. Behind the cells that run there, so nobody waits for it here."""
    group = magics.here.group
    try:
        if group is not None and group.info()["app"]:
            group._submit_app("none")
    except (ConfigError, PeerLost, TimedOut):
        pass  # it is gone


__all__ = ["OWN_MAGICS", "DipMagics", "load", "unload"]
