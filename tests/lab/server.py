"""`jupyter lab` on a free port, with folders of its own: no user settings, no other kernels, no news from the network."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.kernel import Home

SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/completer-extension/manager": {"providerTimeout": 10000},
}


class Server:
    def __init__(self, folder: Path) -> None:
        self.home = Home()
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self._token = secrets.token_hex(16)
        self._log = open(folder / "jupyter.log", "w+")
        self._private = Path(tempfile.mkdtemp(prefix="jl-", dir="/tmp"))
        variables = {**os.environ, **self.home.environment, "DDIP_PRELOAD": ""}
        for name in ("JPY_SESSION_NAME", "PYTHONUNBUFFERED", "PYTEST_CURRENT_TEST"):
            variables.pop(name, None)
        for name, place in (
            ("JUPYTER_CONFIG_DIR", "config"),
            ("JUPYTER_DATA_DIR", "data"),
            ("JUPYTER_RUNTIME_DIR", "run"),
            ("IPYTHONDIR", "ipython"),
            ("JUPYTERLAB_SETTINGS_DIR", "settings"),
            ("JUPYTERLAB_WORKSPACES_DIR", "workspaces"),
        ):
            variables[name] = str(self._private / place)
        for name, settings in SETTINGS.items():
            path = self._private / "settings" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [
            sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--allow-root",
            f"--IdentityProvider.token={self._token}", f"--ServerApp.root_dir={self.notebooks}", "--ServerApp.terminals_enabled=False",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, env=variables, stdout=self._log, stderr=self._log, start_new_session=True
        )
        self._url = self._await_url()

    def _await_url(self) -> str:
        """The server writes where it listens into its runtime folder."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"jupyter lab ended:\n{self.log()}"
            for path in (self._private / "run").glob("jpserver-*.json"):
                try:
                    url = json.loads(path.read_text())["url"]
                    urllib.request.urlopen(f"{url}api/status?token={self._token}", timeout=10).close()
                    return str(url)
                except (OSError, ValueError):
                    pass
            time.sleep(0.05)
        raise AssertionError(f"jupyter lab does not answer:\n{self.log()}")

    def log(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-4000:]

    def url_of(self, notebook: str) -> str:
        return f"{self._url}doc/tree/{notebook}?token={self._token}"

    def write(self, name: str, sources: list[str]) -> None:
        import nbformat

        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), self.notebooks / name)

    def request(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"{self._url}{path}?token={self._token}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def shut_kernels(self) -> None:
        for session in self.request("GET", "api/sessions"):
            self.request("DELETE", f"api/sessions/{session['id']}")

    def close(self) -> None:
        try:
            self.shut_kernels()
        finally:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._log.close()
            self.home.close()
            shutil.rmtree(self._private, ignore_errors=True)


def open_server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.close()
