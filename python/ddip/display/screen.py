"""Where a cell's output goes: the outputs of a notebook's cell, or a terminal."""

from __future__ import annotations

import sys
import uuid
from typing import Any

from ddip.colours import without_colours


class Screen:
    """Where text goes. The base class appends to sys.stdout and sys.stderr."""

    rerenders = False

    def __init__(self, coloured: bool = False) -> None:
        self.coloured = coloured

    def in_its_colours(self, text: str) -> str:
        """A traceback of a rank, say: plain where nobody would see colours."""
        return text if self.coloured else without_colours(text)

    def append(self, stream: int, text: str) -> None:
        target = sys.stderr if stream == 2 else sys.stdout
        target.write(text)
        target.flush()

    def region(self, handle: str | None, text: str) -> str | None:
        """Shows text in a region that can be shown anew; returns its handle."""
        raise NotImplementedError

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any], handle: str | None = None, update: bool = False
    ) -> None:
        self.append(1, data.get("text/plain", "<display>") + "\n")

    def clear(self, wait: bool) -> None:
        pass


class NotebookScreen(Screen):
    """Messages carry the explicit parent of their cell, so that an async cell's output stays under it."""

    rerenders = True

    def __init__(self, shell: Any) -> None:
        super().__init__(coloured=True)
        publisher = shell.display_pub
        self._session = publisher.session
        self._socket = publisher.pub_socket
        self._topic = publisher.topic
        self._parent = shell.get_parent()

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        sys.stdout.flush()  # what was printed here before comes before
        self._session.send(self._socket, kind, content, parent=self._parent, ident=self._topic)

    def append(self, stream: int, text: str) -> None:
        self._send("stream", {"name": "stderr" if stream == 2 else "stdout", "text": text})

    def region(self, handle: str | None, text: str) -> str | None:
        new = handle is None
        if handle is None:
            handle = new_handle()
        content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": handle}}
        self._send("display_data" if new else "update_display_data", content)
        return handle

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any], handle: str | None = None, update: bool = False
    ) -> None:
        content: dict[str, Any] = {"data": data, "metadata": metadata, "transient": {}}
        if handle is not None:
            content["transient"] = {"display_id": handle}
        self._send("update_display_data" if update else "display_data", content)

    def clear(self, wait: bool) -> None:
        self._send("clear_output", {"wait": wait})


def new_handle() -> str:
    """Never seen in this notebook before, or an output of another cell, or of the kernel before this, would change too."""
    return f"ddip-{uuid.uuid4().hex}"


def screen_for(shell: Any) -> Screen:
    if hasattr(shell, "kernel"):
        return NotebookScreen(shell)
    return Screen(coloured=sys.stdout.isatty() and getattr(shell, "colors", "").lower() != "nocolor")
