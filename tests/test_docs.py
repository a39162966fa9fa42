"""The documentation is true: every flag is in it, every link leads somewhere, its code runs, the functions it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "python" / "ddip" / "_bin" / "ddip"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")])

FLAG_IN_HELP = re.compile(r"^ {2,6}(?:(-\w), )?(--[\w-]+)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def flags_in(help_text: str) -> set[str]:
    return {flag for pair in FLAG_IN_HELP.findall(help_text) for flag in pair if flag}


def flags_written_in(page: str) -> set[str]:
    """In backticks or in a code block."""
    code = re.findall(r"`([^`\n]+)`", page) + [body for _, body in BLOCK.findall(page)]
    return {flag for text in code for flag in FLAG.findall(text)}


def section(page: str, title: str) -> str:
    """From this heading to the next one of its level or above."""
    level = title.split()[0]
    rest = page.split(f"\n{title}\n", 1)[1]
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def magic_help(magic: str) -> str:
    from ddip import _client

    if magic == "%makedip":
        return str(_client.check_group_flags(["-h"], "%makedip", {}, None)["help"])
    return str(_client.parse_cell_flags(["-h"], "%%dip")["help"])


# ---- every flag and command


@pytest.mark.parametrize("magic", ["%makedip", "%%dip"])
def test_every_flag_of_a_magic_is_documented(magic: str) -> None:
    known = flags_in(magic_help(magic))
    assert len(known) > 8
    written = flags_written_in(section(text_of("docs/magics.md"), f"## {magic}"))
    assert sorted(known - written) == []


def test_magics_page_invents_no_flag() -> None:
    known = flags_in(magic_help("%makedip")) | flags_in(magic_help("%%dip"))
    others = {"-a", "--args", "-r", "--rank", "--push", "--pull", "-p"}  # of %autodip, %dipull, %dip, and gdb -p
    assert sorted(flags_written_in(text_of("docs/magics.md")) - known - others) == []


def test_every_magic_is_documented() -> None:
    from ddip.magics import OWN_MAGICS

    page = text_of("docs/magics.md")
    assert sorted(name for name in OWN_MAGICS if not re.search(rf"`%{{1,2}}{name}\b", page)) == []


def commands() -> list[str]:
    overview = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^  ([a-z]+) {2,}", overview.split("examples")[0], re.MULTILINE)


def test_every_command_and_its_flags_are_documented() -> None:
    page = text_of("docs/cli.md")
    written = flags_written_in(page)
    group_flags = flags_in(magic_help("%makedip"))  # `ddip up` refers to the magics page for these
    assert len(commands()) >= 11
    for command in commands():
        assert f"`ddip {command}" in page, command
        text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
        missing = flags_in(text) - written - (group_flags if command == "up" else set())
        assert sorted(missing) == [], f"ddip {command}"


# ---- every link


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    without_code = BLOCK.sub("", page.read_text(encoding="utf-8"))
    return {anchor(line) for line in re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)}


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if not re.match(r"[a-z]+:", target):
                yield page, target


@pytest.mark.parametrize(("page", "target"), [pytest.param(p, t, id=f"{p.name}:{t}") for p, t in links()])
def test_link_resolves(page: Path, target: str) -> None:
    file, _, fragment = target.partition("#")
    path = page.parent / file if file else page
    assert path.exists(), f"{page.name} links {target}"
    if fragment:
        assert fragment in anchors(path), f"{page.name} links {target}"


def test_pages_name_no_path_of_the_machine_they_were_written_on() -> None:
    homes = re.compile(r"(?<![\w.])/(?:root|home/\w+|work)/")
    assert [
        f"{page.name}: {found}" for page in PAGES for found in homes.findall(page.read_text(encoding="utf-8"))
    ] == []


# ---- the map of ARCHITECTURE.md


def files_of_row(row: str) -> list[Path]:
    """The files named in backticks, as a path or as the end of one; each must exist."""
    found = []
    for name in re.findall(r"`([\w./]+\.(?:py|cpp|h))`", row):
        real = [
            path
            for folder in ("src", "python", "apps", "tests")
            for path in (ROOT / folder).rglob("*")
            if f"/{path}".endswith(f"/{name}")
        ]
        assert real, f"ARCHITECTURE.md names {name}, which is not there"
        found += real
    return found


def test_the_journey_names_functions_that_exist() -> None:
    rows = [
        row for row in section(text_of("ARCHITECTURE.md"), "## One cell's journey").splitlines() if row.startswith("| ")
    ]
    rows = [row for row in rows if row.split("|")[1].strip().isdigit()]
    assert len(rows) >= 10
    everything = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("src", "python", "apps")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".h")
    )
    for row in rows:
        where = row.split("|")[2]
        source = "\n".join(path.read_text(encoding="utf-8") for path in files_of_row(where)) or everything
        for name in re.findall(r"`([A-Za-z_]+(?:(?:::|\.)[a-z_]+)?)`", where):
            if name.endswith((".py", ".cpp")):
                continue
            last = re.split(r"::|\.", name)[-1]
            assert re.search(rf"\b{last}\b", source), f"ARCHITECTURE.md names {name} in: {where.strip()}"


def test_every_folder_and_file_that_architecture_names_exists() -> None:
    page = text_of("ARCHITECTURE.md")
    for name in re.findall(r"`([\w./]+\.(?:py|cpp|h|md))`", page):
        assert files_of_row(f"`{name}`") if not name.endswith(".md") else list(ROOT.rglob(name)), name
    for folder in re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE):
        assert (ROOT / "src" / "ddip" / folder).is_dir(), folder


# ---- code


def blocks(page: str, language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text_of(page)) if name == language]


def run_script(source: str, folder: Path) -> str:
    """In a file of its own, as a reader would: its functions are those of __main__."""
    script = folder / "page.py"
    script.write_text(source, encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env=variables, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised(source: str) -> list[str]:
    """What a page says that a line prints: print(x)   # [1, 2]: words."""
    return re.findall(r"print\(.*\)\s+# ([\[{].*?[\]}])(?=:|$)", source, re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/ledger.md"])
def test_python_of_a_page_runs_and_prints_what_it_says(page: str, tmp_path: Path) -> None:
    source = "\n".join(block for block in blocks(page, "python") if not block.startswith("%"))
    assert source
    printed = run_script(source, tmp_path).splitlines()
    for text in promised(source):
        assert text in printed, printed
        printed = printed[printed.index(text) + 1 :]


def test_notebook_of_the_readme_runs_and_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    sources = [block for block in blocks("README.md", "python") if block.startswith("%")]
    assert len(sources) == 3, "a block is a cell: pasted into one they would not run"
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3").execute()
    (shown,) = notebook.cells[1].outputs
    every = [body for _, body in BLOCK.findall(text_of("README.md"))]
    promise = every[every.index(sources[-1]) + 1]
    assert shown.data["text/plain"].strip() == promise.strip()
    assert "stopped" in notebook.cells[2].outputs[-1].text


def test_cpp_of_the_pages_is_the_examples() -> None:
    client, training = blocks("README.md", "cpp")
    assert client in text_of("examples/client.cpp")
    assert training in text_of("examples/cpp/train.cpp")
    (pipeline,) = blocks("docs/pipeline.md", "cpp")
    assert pipeline in text_of("examples/cpp/pipeline.cpp")


def test_every_test_that_the_feature_list_names_exists() -> None:
    text = (ROOT / "docs" / "features.md").read_text()
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", text)
    assert len(named) > 50
    for file, name in named:
        source = (ROOT / "tests" / file).read_text()
        assert not name or f"def {name}(" in source, f"{file}::{name} is named in docs/features.md and does not exist"
