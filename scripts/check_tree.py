"""Rules of this repository that no other tool knows: links, fragments, rooms and names.

Every relative link in a Markdown file names a file that exists, and every `#anchor` a heading in it. Every
news fragment has a declared type and a text, and a change of `src` comes with one. CONTRIBUTING's layout
names every package and nothing else, and packages are at most two levels deep. No two public classes have one
name, and no more than two modules. No module imports itself by way of others, functions' imports included.
Code weighs no more than `budget.json` allows, which is only ever lowered. Standard library only.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/opscope"
# A table of the Session and one of a report are both just that; no module uses both.
TWICE = frozenset(("Column", "Table"))
FRAGMENT_TYPES = ("feature", "fix", "doc")
_FRAGMENT = re.compile(rf"^[^.]+\.({'|'.join(FRAGMENT_TYPES)})(\.\d+)?\.md$")
_LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_SKIPPED_FOLDERS = {"node_modules", "build", "dist", "opscope_output", "profiling_results"}


def main() -> int:
    """Print every broken rule; 1 if there is any."""
    problems = [
        *broken_links(),
        *broken_fragments(),
        *broken_layout(),
        *repeated_names(),
        *import_circles(),
        *over_budget(),
    ]
    for problem in problems:
        print(problem)
    print(
        f"{len(problems)} problem(s)"
        if problems
        else "links resolve; fragments, layout and names are in order"
    )
    return 1 if problems else 0


def broken_links() -> Iterator[str]:
    """One line per relative link of a Markdown file that leads nowhere."""
    for page in markdown_pages():
        prose = _INLINE_CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
        for target in _LINK.findall(prose):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            where = f"{page.relative_to(ROOT)}: link {target!r}"
            if not file.is_relative_to(ROOT):
                yield f"{where} leaves the repository"
            elif not file.exists():
                yield f"{where}: no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield f"{where}: no such heading"


def markdown_pages() -> list[Path]:
    """Every Markdown file of the repository outside hidden and generated folders."""
    return [
        page
        for page in sorted(ROOT.rglob("*.md"))
        if not any(
            part.startswith(".") or part in _SKIPPED_FOLDERS for part in page.relative_to(ROOT).parts[:-1]
        )
    ]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, formed as code forges form them."""
    headings = re.findall(
        r"^#{1,6} +(.+?) *#*$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_fragments() -> Iterator[str]:
    """One line per ill-named or empty fragment, and one if a change of `src` has none."""
    fragments = [
        file for file in sorted((ROOT / "changes").glob("*")) if file.name not in ("README.md", ".gitkeep")
    ]
    for fragment in fragments:
        if not _FRAGMENT.match(fragment.name):
            yield f"changes/{fragment.name}: name it +WORDS.TYPE.md, TYPE one of {', '.join(FRAGMENT_TYPES)}"
        elif not fragment.read_text(encoding="utf-8").strip():
            yield f"changes/{fragment.name}: empty"
    if not fragments and source_changed_since_release():
        yield "src changed since CHANGELOG.md was last written: add a fragment (see changes/README.md)"


def broken_layout() -> Iterator[str]:
    """One line per package that CONTRIBUTING's layout lacks, or names though it is none; and per deep one."""
    named = set(
        re.findall(r"`src/opscope/([a-z_]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    )
    packages = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    for package in sorted(packages - named):
        yield f"CONTRIBUTING.md: the layout lacks src/opscope/{package}"
    for package in sorted(named - packages):
        yield f"CONTRIBUTING.md: the layout names src/opscope/{package}, which does not exist"
    for file in sorted(SOURCE.glob("*/*/*/__init__.py")):
        yield f"{file.parent.relative_to(ROOT)}: packages are at most two levels deep"


def repeated_names() -> Iterator[str]:
    """One line per public class that two modules define, and per module name that three packages have."""
    classes, modules = defaultdict(list), defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        # A verb is a module of `cli` named like it; kernels are named like their operator.
        if file.parent.name not in ("cli", "triton") and not file.stem.startswith("__"):
            modules[file.stem].append(place)
        for node in parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(place)
    for name, places in classes.items():
        if len(places) > 1 and name not in TWICE:
            yield f"class {name} stands in {' and '.join(places)}: give each a name of its own"
    for name, places in modules.items():
        if len(places) > 2:
            yield f"{name}.py stands in {len(places)} packages ({', '.join(places)}): say what each holds"


def source_changed_since_release() -> bool:
    """Whether `src` differs from its state at the last commit of CHANGELOG.md; False where git cannot tell.

    On a shallow clone both have the boundary commit in common, so the answer is no: never a false alarm.
    """
    released = git("log", "-1", "--format=%H", "--", "CHANGELOG.md")
    return bool(released) and bool(git("diff", "--name-only", released, "--", "src"))


def git(*arguments: str) -> str:
    """What git prints; empty if it fails or is not there."""
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def import_circles() -> Iterator[str]:
    """One line if modules import each other in a circle; what only type checkers read does not count."""
    modules = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(("opscope", *path.relative_to(SOURCE).with_suffix("").parts))
        modules[name.removesuffix(".__init__")] = path
    graph = {name: imported(path, modules.keys()) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"imports run in a circle: {' <- '.join(error.args[1])}"


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, modules: Set[str]) -> set[str]:
    """Which of these modules a file imports."""
    names: set[str] = set()
    nodes: list[ast.AST] = [parsed(path)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = [f"{node.module}.{one.name}" for one in node.names]
            names.update(one if one in modules else node.module for one in inside)
        elif isinstance(node, ast.Import):
            names.update(one.name for one in node.names)
        nodes += ast.iter_child_nodes(node)
    return names & modules


def over_budget() -> Iterator[str]:
    """One line per folder whose Python has more files, lines or statements than the budget has."""
    budget = json.loads(Path(__file__).with_name("budget.json").read_text(encoding="utf-8"))
    for folder, most in budget.items():
        # Programs of the field are what is measured: each is as its user wrote it.
        paths = [one for one in (ROOT / folder).rglob("*.py") if one.parent.name != "programs"]
        weight = {
            "files": len(paths),
            "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in paths),
            "statements": sum(
                isinstance(node, ast.stmt) for path in paths for node in ast.walk(parsed(path))
            ),
        }
        for kind, limit in most.items():
            if weight[kind] > limit:
                yield f"{folder} has {weight[kind]:,} {kind}, at most {limit:,} are allowed"


if __name__ == "__main__":
    sys.exit(main())
