"""A notebook without a browser: a real kernel, its cells executed by nbclient, their outputs as a notebook file holds them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.shell import plain_text


@dataclass
class Outputs:
    cell: Any

    @property
    def all(self) -> list[Any]:
        return list(self.cell.outputs)

    @property
    def text(self) -> str:
        """All text a reader sees, in order, without colours."""
        parts = []
        for output in self.all:
            if output.output_type == "stream":
                parts.append(output.text)
            elif output.output_type == "error":
                parts.append("\n".join(output.traceback) + "\n")
            else:
                parts.append(output.data.get("text/plain", "") + "\n")
        return plain_text("".join(parts))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def of_type(self, mime: str) -> list[Any]:
        return [output.data[mime] for output in self.all if mime in output.get("data", {})]

    @property
    def kinds(self) -> list[str]:
        """For each output the richest thing a reader sees."""
        order = ("image/png", "text/html", "text/plain")
        return [
            output.name
            if output.output_type == "stream"
            else next((mime for mime in order if mime in output.get("data", {})), output.output_type)
            for output in self.all
        ]

    @property
    def error(self) -> Any:
        found = [output for output in self.all if output.output_type == "error"]
        return found[-1] if found else None


class Kernel:
    """One kernel; `run` executes a cell whether or not it fails, `do` one that must work."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, source: str) -> Outputs:
        import nbformat
        from nbclient.exceptions import CellExecutionError

        cells = self._client.nb.cells
        cells.append(nbformat.v4.new_code_cell(source))
        try:
            self._client.execute_cell(cells[-1], len(cells) - 1)
        except CellExecutionError:
            pass
        return Outputs(cells[-1])

    def do(self, source: str) -> Outputs:
        outputs = self.run(source)
        refused = [output for output in outputs.all if output.get("name") == "stderr" and "UsageError" in output.text]
        assert outputs.error is None and not refused, f"{source}\n{outputs.text}"
        return outputs

    def messages(self, enough: Callable[[list[Any]], bool], seconds: float = 10) -> list[Any]:
        """What the kernel publishes between cells, until it is enough; nbclient looks at the running cell's only."""
        from jupyter_core.utils import run_sync

        seen: list[Any] = []
        deadline = time.monotonic() + seconds
        while not enough(seen):
            assert time.monotonic() < deadline, seen
            seen.append(run_sync(self._client.kc.get_iopub_msg)(timeout=seconds))
        return seen

    @property
    def pid(self) -> int:
        return int(self._client.km.provisioner.pid)


def open_kernel(environment: Mapping[str, str], folder: str) -> Iterator[Kernel]:
    import nbformat
    from nbclient import NotebookClient

    client = NotebookClient(
        nbformat.v4.new_notebook(), timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    with client.setup_kernel(env={**os.environ, **environment}):
        yield Kernel(client)


class Home:
    """Folders of a kernel or a server that several tests share; those of the single test are gone too soon."""

    def __init__(self) -> None:
        self.runtime = tempfile.mkdtemp(prefix="dr-", dir="/tmp")
        self.state = tempfile.mkdtemp(prefix="ds-", dir="/tmp")

    @property
    def environment(self) -> dict[str, str]:
        return {"DDIP_RUNTIME_DIR": self.runtime, "XDG_STATE_HOME": self.state}

    def close(self) -> None:
        """Stops what still runs, and sees that it is gone."""
        from support import processes

        import ddip

        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            for name in ddip.groups():
                ddip.attach(name).stop()
            processes.assert_gone(processes.of_runtime(self.runtime), 5.0, "of the shared kernel's groups")
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            for folder in (self.runtime, self.state):
                shutil.rmtree(folder, ignore_errors=True)
