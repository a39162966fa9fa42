"""`make demo`: runs examples/unet.ipynb cell by cell on two CPU workers and shows what each cell says; then the same job
from the command line.

Writes demo-out/unet.html (with its pictures) and demo-out/unet.ipynb. Exit 1 if a cell or command failed, the replicas
differed, the loss did not go down, or the network learned too little. No group is left running, whatever happens.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("nbclient", "nbconvert", "ipykernel", "matplotlib", "tqdm", "torch")
CELL_LIMIT = 120  # seconds
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Asked of the kernel when all cells are done.
QUESTION = (
    "(bool(replicas_equal), float(history[0]), float(history[-1]), float(globals().get('accuracy', 1)), "
    "[float(loss) for loss in globals().get('pipeline_history', [])])"
)
ENOUGH = 0.9  # non-zero accuracy; the baselines stay below 0.8


@dataclass
class Outcome:
    replicas_equal: bool
    first_loss: float
    last_loss: float
    accuracy: float
    pipeline: list[float]  # losses; empty: there was none

    def complaint(self) -> str:
        """What is wrong with the run; empty if nothing is."""
        if not self.replicas_equal:
            return "the two copies of the model differ"
        if not self.last_loss < self.first_loss / 2:
            return f"the loss did not go down: {self.first_loss:.4f} at first, {self.last_loss:.4f} at last"
        if self.accuracy < ENOUGH:
            return f"the network learned too little: accuracy {self.accuracy:.3f}"
        if self.pipeline and not self.pipeline[-1] < 0.7 * self.pipeline[0]:
            return (
                f"the pipeline's loss did not go down: {self.pipeline[0]:.4f} at first, {self.pipeline[-1]:.4f} at last"
            )
        return ""


def first_line(source: str) -> str:
    """A magic says little without the line behind it."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    text = "  ".join(lines[:2] if lines and lines[0].startswith("%") else lines[:1])
    return text if len(text) <= 70 else text[:69] + "…"


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return "\n".join(output.traceback)
    text = str(output.data.get("text/plain", ""))
    return f"picture: {text}" if "image/png" in output.data else text


def show(cell: Any) -> None:
    text = ""
    for output in cell.outputs:
        text += text_of(output)
        text += "" if output.output_type == "stream" or text.endswith("\n") else "\n"
    for line in COLOURS.sub("", text).rstrip("\n").split("\n") if text else []:
        print("      " + line.rstrip("\r").rsplit("\r", 1)[-1])  # of a line that was redrawn the last
    sys.stdout.flush()


async def run_cells(client: Any, log: Any) -> Outcome:
    cells = [(index, cell) for index, cell in enumerate(client.nb.cells) if cell.cell_type == "code"]
    async with client.async_setup_kernel(stdout=log, stderr=log):
        for number, (index, cell) in enumerate(cells, 1):
            print(f"[{number:2d}/{len(cells)}] {first_line(cell.source)} …", end="", flush=True)
            begun = time.monotonic()
            try:
                await client.async_execute_cell(cell, index)
            finally:
                print(f" {time.monotonic() - begun:.1f} s")
                show(cell)
        reply = await client.kc.execute_interactive("", silent=True, user_expressions={"answer": QUESTION}, timeout=30)
        answer = reply["content"]["user_expressions"]["answer"]
        if answer["status"] != "ok":
            raise RuntimeError(f"the notebook has no {QUESTION}: {answer['evalue']}")
        return Outcome(*ast.literal_eval(answer["data"]["text/plain"]))


def write_html(notebook: Any, file: Path) -> None:
    from nbconvert import HTMLExporter

    # Nothing is fetched when the page is opened: it has no formulas and no widgets.
    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", embed_images=True)
    page, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": f"ddip {file.stem}"}})
    file.write_text(page, encoding="utf-8")


def on_the_command_line(folder: Path) -> str:
    """The same job without a notebook; what went wrong, empty if nothing did."""
    events, run, predictions = folder / "events", folder / "run", folder / "predictions"
    for old in (events, run, predictions):
        shutil.rmtree(old, ignore_errors=True)
    commands = [
        ["data", "synth", "--out", events, "--events", 200, "--size", 128, "--seed", 1],
        ["unet", "train", "--data", events, "--out", run, "-n", 2, "--width", 8, "--depth", 3, "--epochs", 6, "--batch", 4, "--lr", 0.01],
        ["unet", "evaluate", "--run", run, "--data", events],
        ["unet", "predict", "--run", run, "--data", events, "--out", predictions, "--pictures", 4],
    ]  # fmt: skip
    program = ROOT / "python" / "ddip" / "_bin" / "ddip"
    for command in commands:
        words = [str(relative(word) if isinstance(word, Path) else word) for word in command]
        print("\n$ ddip " + " ".join(words), flush=True)
        done = subprocess.Popen([str(program), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in done.stdout or ():
            print("      " + line, end="", flush=True)
        if done.wait() != 0:
            return f"ddip {words[0]} {words[1]} ended with code {done.returncode}; its error is above"
    return ""


def stop_group(session: str) -> None:
    from ddip.group import attach, groups

    from ddip import _client

    name = _client.notebook_group_name(session)
    if name in groups():
        print(f"stopping group {name}")
        attach(name).stop()


def relative(path: Path) -> Path:
    return Path(os.path.relpath(path))


def run(source: Path, folder: Path, shell: bool) -> int:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this Python's kernel, not one of the same name in the user's home
    folder.mkdir(parents=True, exist_ok=True)
    page, copy = folder / f"{source.stem}.html", folder / f"{source.stem}.ipynb"
    notebook: Any = nbformat.read(source, as_version=4)
    outcome = None
    wrong = ""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddip-demo-") as unique:
        # The group is named after the notebook's path: one of our own, so that we never meet the reader's own group.
        session = os.environ["JPY_SESSION_NAME"] = str(Path(unique) / source.name)
        try:
            client = NotebookClient(
                notebook,
                timeout=CELL_LIMIT,
                kernel_name="python3",
                resources={"metadata": {"path": str(source.parent)}},
            )
            with open(folder / "kernel.log", "w") as log:
                outcome = asyncio.run(run_cells(client, log))
            wrong = outcome.complaint()
        except CellExecutionError:
            wrong = "a cell failed; its error is above"
        except (CellTimeoutError, DeadKernelError, RuntimeError) as error:
            wrong = str(error).strip().splitlines()[0]
        finally:
            stop_group(session)
    if shell and not wrong:
        wrong = on_the_command_line(folder)
    seconds = time.monotonic() - begun
    nbformat.write(notebook, copy)
    write_html(notebook, page)
    print()
    if wrong or outcome is None:
        print(f"The demo failed after {seconds:.0f} s: {wrong}.")
        print(f"As far as it came: {relative(page)}")
        return 1
    pictures = f", and {relative(folder / 'predictions')}/*.png" if shell else ""
    learned = f", non-zero accuracy {outcome.accuracy:.3f}" if shell else ""
    print(
        f"Two workers trained one model from a notebook{' and from a shell' if shell else ''} in {seconds:.0f} s: "
        f"loss {outcome.first_loss:.3f} → {outcome.last_loss:.4f}{learned}, replicas equal, group stopped."
    )
    if outcome.pipeline:
        print(f"As a pipeline in two parts: loss {outcome.pipeline[0]:.3f} → {outcome.pipeline[-1]:.3f}.")
    print(f"Look at it:   {relative(page)} (in any browser){pictures}")
    print(f"Do it:        .venv/bin/jupyter lab {relative(source)}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs an example notebook headless and shows what it does.")
    parser.add_argument("--notebook", type=Path, help="another one than examples/unet.ipynb; without the command line")
    parser.add_argument("--out", type=Path, default=ROOT / "demo-out")
    options = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"ddip: the demo needs {', '.join(missing)}, which this Python has not: {sys.executable}", file=sys.stderr
        )
        return 1
    notebook = options.notebook or ROOT / "examples" / "unet.ipynb"
    print(f"{relative(notebook)}, headless, on two CPU workers:\n")
    return run(notebook, options.out, shell=options.notebook is None)


if __name__ == "__main__":
    sys.exit(main())
