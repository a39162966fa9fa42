"""One notebook in the browser, as a person has it: cells are run with the keyboard, and what the screen shows is read."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 60.0

# Every distinct text that the output of a cell has had, as the browser drew it.
WATCH = """
index => {
  const area = document.querySelectorAll('.jp-Notebook .jp-Cell')[index].querySelector('.jp-Cell-outputArea');
  const states = [];
  const look = () => {
    const text = area.innerText;
    if (states[states.length - 1] !== text) states.push(text);
  };
  const observer = new MutationObserver(look);
  observer.observe(area, {childList: true, subtree: true, characterData: true});
  (window.ddipStates = window.ddipStates || {})[index] = states;
}
"""


# What stands in the boxes of input() under a cell.
QUESTIONS = """
index => [...document.querySelectorAll('.jp-Notebook .jp-Cell')[index].querySelectorAll('input.jp-Stdin-input')].map(box => box.value)
"""


def missing(*modules: str) -> str | None:
    """Why there can be no browser test here that needs these; None if there can."""
    for module in ("playwright", *modules):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    if shutil.which("chromium") is None:
        return "chromium is not installed (apt install chromium)"
    return None


def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Page:
    def __init__(self, browser: Any, url: str) -> None:
        self._page = browser.new_page(viewport={"width": 1000, "height": 1100})
        self._page.set_default_timeout(PATIENCE * 1000)
        self._page.goto(url)
        self._page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        self.until(lambda: "| Idle" in self.kernel_status(), "the kernel is there")

    # ---- looking

    def cell(self, index: int) -> Any:
        return self._page.locator(".jp-Notebook .jp-Cell").nth(index)

    def output(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-Cell-outputArea").inner_text())

    def lines(self, index: int) -> list[str]:
        return [line.rstrip() for line in self.output(index).splitlines() if line.strip()]

    def prompt(self, index: int) -> str:
        return str(self.cell(index).locator(".jp-InputPrompt").inner_text())

    def busy(self, index: int) -> bool:
        return "*" in self.prompt(index)

    def kernel_status(self) -> str:
        """As the status bar has it: `Python 3 (ipykernel) | Idle`. It comes last, when the page takes keys."""
        return " ".join(self._page.locator(".jp-StatusBar-Widget, #jp-main-statusbar").all_inner_texts())

    def until(self, look: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """The browser goes on between two looks."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.everything()}"
            self._page.wait_for_timeout(30)

    def everything(self) -> str:
        cells = self._page.locator(".jp-Notebook .jp-Cell")
        return "\n".join(f"{self.prompt(index)} {self.output(index)}" for index in range(cells.count()))

    def watch(self, index: int) -> None:
        self._page.evaluate(WATCH, index)

    def states(self, index: int) -> list[str]:
        return list(self._page.evaluate("index => window.ddipStates[index]", index))

    def screenshot(self, path: Path) -> None:
        self._page.screenshot(path=str(path))

    @property
    def raw(self) -> Any:
        return self._page

    # ---- doing

    def select(self, index: int) -> None:
        """The cell is active, in command mode."""
        self.cell(index).locator(".jp-InputArea-editor").click()
        self._page.keyboard.press("Escape")

    def start(self, index: int) -> None:
        self.select(index)
        before = self.prompt(index)
        self._page.keyboard.press("Control+Enter")
        self.until(lambda: self.prompt(index) != before or self.busy(index), f"cell {index} starts")

    def run(self, index: int, seconds: float = PATIENCE) -> list[str]:
        self.start(index)
        self.until(lambda: not self.busy(index), f"cell {index} ends", seconds)
        return self.lines(index)

    def press_stop(self) -> None:
        self._page.locator(
            '.jp-Toolbar [data-command="notebook:interrupt-kernel"], .jp-Toolbar jp-button[data-command="notebook:interrupt-kernel"]'
        ).first.click()

    def restart_kernel(self) -> None:
        self._page.locator(
            '.jp-Toolbar [data-command="notebook:restart-kernel"], .jp-Toolbar jp-button[data-command="notebook:restart-kernel"]'
        ).first.click()
        self._page.locator(".jp-Dialog .jp-mod-accept").click()
        self._page.locator(".jp-Dialog").wait_for(state="detached")
        self.until(lambda: "| Idle" in self.kernel_status(), "the kernel is there again")

    def answer(self, index: int, text: str) -> None:
        """Into the box that input() opens under the cell; an answered one stays a moment."""
        self.until(lambda: self._page.evaluate(QUESTIONS, index) == [""], "there is a question")
        box = self.cell(index).locator("input.jp-Stdin-input")
        box.fill(text)
        box.press("Enter")
        self.until(lambda: text not in self._page.evaluate(QUESTIONS, index), "the answer is taken")

    def type(self, index: int, text: str) -> None:
        """At the end of the cell, in edit mode."""
        self.cell(index).locator(".jp-InputArea-editor .cm-content").click()
        self._page.keyboard.press("Control+End")
        self._page.keyboard.type(text)

    def close(self) -> None:
        self._page.close()
