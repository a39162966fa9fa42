"""A second connection to a group, for requests that must not wait behind a cell's output."""

from __future__ import annotations

from typing import Any

from ddip import _client
from ddip.errors import PeerLost


class ControlConnection:
    """Made at the first request, and again if it broke. `coordinator`: whose pid the group had when we came; another one
    that took its name is not meant."""

    def __init__(self, folder: str, client: str, coordinator: int) -> None:
        self._folder, self._client, self._coordinator = folder, client, coordinator
        self._native: Any = None

    def request(self, kind: str, body: dict[str, Any], patience: float) -> dict[str, Any]:
        return dict(self._ask("request", kind, body, patience))

    def send(self, kind: str, body: dict[str, Any]) -> None:
        self._ask("send", kind, body)

    def _ask(self, way: str, *what: Any) -> Any:
        if self._native is not None:
            try:
                return getattr(self._native, way)(*what)
            except PeerLost:
                self._native = None
        self._native = self._connect()
        return getattr(self._native, way)(*what)

    def _connect(self) -> Any:
        native = _client.Client(self._folder, self._client)
        if native.welcome["pid"] != self._coordinator:
            raise PeerLost("the group is gone; another one has its name now")
        return native
