"""What opscope says, taken from its source: each text and template that a report may show.

`scripts/messages.py` names those that a catalog has no words for; `--update` writes the catalog anew: what
is new comes in with an empty translation, what is no longer said goes out.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import tomli

from opscope.units import plural_of

SOURCE = Path(__file__).parent.parent / "src/opscope"
Catalog = dict[str, dict[str, str]]  # by the file that says it, each message with its translation
# Who speaks in reports (`file:class` for a part); what other modules say are errors, and words of commands.
SPEAKERS = (
    "report", "advice", "analysis", "launches", "toolchain/doctor", "results.py",
    "benchmarking/findings.py", "benchmarking/statistics.py",
    "capture/program_recorder.py", "cli/compare.py", "cli/ncu.py",
    "cli/nvcc.py", "cli/run.py", "cli/trace.py", "trials/outcome.py", "trials/trying.py:Trial",
    "extraction/alone_calls.py",
    "hardware/architectures.py", "hardware/occupancy.py",
    "ingest/kineto_file.py:graph_findings", "ingest/kineto_file.py:_window_findings",
    "ingest/nsys_reading.py:export_findings",
    "ingest/quality.py", "ingest/replays.py",
    "model/benchmark.py", "model/comparison.py", "model/origin.py",
    "model/schema.py:Attribution", "model/trial.py",
    "nvcc/compile.py:findings_of", "nvcc/compile.py:_more_registers",
    "operators/collective_costs.py", "operators/effects.py",
    "operators/engine_operators.py",
    "operators/generated_kernels.py", "operators/operator_table.py", "operators/session_costs.py",
    "provenance/torch_releases.py:_labeled", "provenance/torch_releases.py:_neighbor",
    "provenance/torch_releases.py:_by_hit_rate",
    "toolchain/ncu_report.py", "cupti/trace_file.py:recording_findings",
    "cupti/trace_file.py:write_trace", "trials/catalog.py", "trials/replay.py",
    "trials/child.py:_is_early",
    "trials/pooling.py", "trials/processes.py", "trials/rounds.py",
)  # fmt: skip
_NO_REPORTS = re.compile(r"report/(?:summary_json|languages)\.py")
# Files of sentences, and the keys that hold those shown in reports; every value of a file for "".
DATA = {
    "advice/rules.toml": ("title", "suggestion", "basis"),
    "analysis/findings.toml": ("message", "suggestion"),
    "benchmarking/findings.toml": ("message", "suggestion"),
    "ingest/findings.toml": ("message", "suggestion", "effect"),
    "ingest/other_files.toml": ("reads", "what", "hint"),
    "analysis/counters.toml": ("meaning", "remedy", "suggestion", "basis"),
    "launches/launch_explanations.toml": (
        "shared", "parallel_over", "block_computes", "memory", "synchronization", "algorithm", "text",
        "values_of",
    ),
    "provenance/categories.toml": ("title",),
    "provenance/kernel_names/families.toml": ("",),
}  # fmt: skip
PLACE = "{}"
# Calls whose first argument is shown, were it one word.
_TITLES = frozenset(("Section", "number", "words", "identifier", "numeric", "Column"))
# What such calls are given is no message.
_SILENT = frozenset((
    "Code", "CodeBlock", "compile", "endswith", "execute", "getattr", "load_query", "partition", "query",
    "removeprefix", "removesuffix", "replace", "split", "sql", "startswith",
))  # fmt: skip
# A page's own words.
_PAGE = SOURCE / "report/html/page.html.j2"
_SAID = re.compile(r"""\{\{([^{}]*(?:\{\}[^{}]*)?)\| said""")
_ERRORS = frozenset(("InputError", "CaptureError", "MeasurementError", "DependencyError", "note"))
# Statements, patterns, commands, expressions, lists of names, and forms without a word.
_CODE = re.compile(
    r"""
    SELECT\ |CREATE\ |INSERT\ |\\|\.\*|\[Ss\]|</|::|\n
    |^opscope\ \w+\ (?:--|FILE)|^def\ |\{[a-z]|^Triton\ \{\}$
    |^(?:sudo|pip|python|nvidia-smi;?|docker|export|unset|dcgmi|df|ls|conda\ create|doctor|bold)\ .*
    |^[^A-Z{]*\w=\w|^[\w.]+\ ?=|^[\w.]+$
    |^(?:cat|file|kind|median\ low|module_ns|name|path|reference\ candidate|threads|trace_id|unit)\ .*
    |^Exporting\ |^Compiling\ \{\}$|^<|\ …\ \{\}\ characters
    |^(?:bottom|top|middle)\ (?:left|right)$|^(?:script|style|img)-src\ |How\ far$|Where\ the\ GPU$
    |^rank\ transfers\ |^[a-z]+(?:_[a-z]+)+\ |^-?\w+_\w+\ |^_[a-z]|^\*|_counts|\.\.\.\ |^[_a-z\ ]*$(?<=_[a-z])
    |^(?:\{\}\ link\ \{\}|\(\{\}\ to\ \{\}\)|\{\}\ to\ \{\}\ %|\{\}\ \(by\ \{\}\)|nvcc\ \{\}\ \(\{\}\)|\W*)$
    """,
    re.VERBOSE,
)


def messages() -> dict[str, str]:
    """Each message, with the file that says it."""
    found: dict[str, str] = {}
    for file, said in chain(_spoken_by_modules(), _on_pages(), _told_by_modules(), _written_in_data()):
        found.setdefault(said, file)
    return found


def _spoken_by_modules() -> Iterator[tuple[str, str]]:
    for speaker in SPEAKERS:
        name, _, part = speaker.partition(":")
        place = SOURCE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            file = str(path.relative_to(SOURCE))
            tree = ast.walk(_parsed(path))
            module = next(one for one in tree if not part or getattr(one, "name", "") == part)
            if not _NO_REPORTS.fullmatch(file):
                yield from ((file, message) for message in _Reader().read(module))


def _on_pages() -> Iterator[tuple[str, str]]:
    for expression in _SAID.findall(_PAGE.read_text(encoding="utf-8")):
        for text in re.findall("[\"']([^\"']+)[\"']", expression):
            yield "report/html/page.html.j2", text.strip(" .")


def _told_by_modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield from ((str(path.relative_to(SOURCE)), message) for message in _told(_parsed(path)))


def _written_in_data() -> Iterator[tuple[str, str]]:
    for file, keys in DATA.items():
        data = tomli.loads((SOURCE / file).read_text(encoding="utf-8"))
        for text in _values_under(data, keys, shown="" in keys):
            yield from ((file, message) for message in _worded(text))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _told(module: ast.Module) -> Iterator[str]:
    """What its errors and notes say, and what they advise."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _ERRORS:
            for part in (*node.args[:1], *(one.value for one in node.keywords if one.arg == "hint")):
                yield from _Reader().read(part)


def _values_under(data: object, keys: tuple[str, ...], *, shown: bool) -> Iterator[str]:
    if isinstance(data, str) and shown and not data.startswith("@"):
        yield data
    elif isinstance(data, list):
        for one in data:
            yield from _values_under(one, keys, shown=shown and isinstance(one, str))
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from _values_under(value, keys, shown=shown or key in keys)


_VALUE = re.compile(r"\{\w+(?::([^{}]*))?\}")


def _worded(text: str) -> Iterator[str]:
    """A sentence of data: whole, without what stands in brackets, and what its values may read."""
    for match in _VALUE.finditer(text):
        noun = match.group(1) or ""
        if noun.startswith("every "):
            noun = noun.removeprefix("every ")
            yield f"All {{}} {plural_of(noun)}"
        if noun[:1].isalpha() and noun not in ("independent", "g"):
            yield f"{{}} {noun}"
            yield f"{{}} {plural_of(noun)}"
    text = _VALUE.sub(PLACE, text)
    for variant in (re.sub(r"\[[^\[\]]*\]", "", text), re.sub(r"[\[\]]", "", text)):
        yield from _spoken(variant) if " " in variant else re.findall(r"^[A-Z]\w+$", variant)


class _Reader:
    """Messages of one module."""

    def read(self, node: ast.AST, *, silent: bool = False) -> Iterator[str]:
        text = None if silent else template(node)
        if text is not None:
            yield from _spoken(text)
            for value in chain.from_iterable(map(_values, _parts(node))):
                yield from self.read(value)
        elif isinstance(node, ast.Call):
            yield from self._call(node, silent=silent)
        elif isinstance(node, ast.Subscript):
            yield from self.read(node.value, silent=silent)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    yield from self.read(key, silent=silent)
                yield from chain(_label(value), self.read(value, silent=silent))
        elif not isinstance(node, ast.Raise | ast.Assert) and not is_docstring(node):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2 and not silent:
                yield from _label(node.elts[0])
            for child in ast.iter_child_nodes(node):
                yield from self.read(child, silent=silent or isinstance(node, ast.Compare | ast.MatchValue))

    def _call(self, node: ast.Call, *, silent: bool) -> Iterator[str]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("counted", "times") and not silent:
            words = [one.value for one in node.args[1:] if isinstance(one, ast.Constant)]
            if words:
                yield f"{{}} {words[0]}"
                yield f"{{}} {words[1] if len(words) > 1 else plural_of(words[0])}"
        first = node.args[0] if node.args else None
        title = getattr(first, "value", None) if name in _TITLES else None
        if (
            isinstance(title, str)
            and re.search("[a-z]{2}", title)
            and (title.isalpha() or not _CODE.search(title))
        ):
            yield title
        yield from self.read(node.func, silent=silent)
        for child in (*node.args, *(one.value for one in node.keywords)):
            yield from self.read(child, silent=silent or name in _SILENT)


def _label(node: ast.AST) -> Iterator[str]:
    """A single word, where labels stand."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match("[A-Z][a-z]+$", node.value)
    ):
        yield node.value


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def template(node: ast.AST) -> str | None:
    """What a text, an f-string, a sum of texts or a tuple of inlines says, with places for the rest."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(PLACE if isinstance(one, ast.FormattedValue) else one.value for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [template(one) for one in (node.left, node.right)]
        return None if parts == [None, None] else "".join(PLACE if one is None else one for one in parts)
    if isinstance(node, ast.Tuple) and _is_text(node):
        return "".join(_inline(one) for one in node.elts)
    return None


def _is_text(node: ast.Tuple) -> bool:
    texts = [template(one) or "" for one in node.elts]
    return any(text[:1] == " " or text[-1:] == " " for text in texts)


def _inline(node: ast.expr) -> str:
    text = template(node)
    return PLACE if text is None else text


def _parts(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.BinOp):
        return [one for side in (node.left, node.right) for one in _parts(side)]
    if isinstance(node, ast.Tuple):
        return [one for element in node.elts for one in _parts(element)]
    return [node]


def _values(node: ast.AST) -> list[ast.AST]:
    """What stands in the places of a part."""
    if isinstance(node, ast.JoinedStr):
        return [one.value for one in node.values if isinstance(one, ast.FormattedValue)]
    return [] if isinstance(node, ast.Constant) else [node]


def _spoken(text: str) -> Iterator[str]:
    """The message in its catalog form, if it is one."""
    text = re.sub(r"\{\}(?: ?\{\})+", PLACE, text).strip(" ;,:.")  # nothing tells where one place ends
    if text and re.search(r"[A-Za-z]{2,}.? [a-z]|\} [a-z]{2,}|[a-z]{2,} \{", text) and not _CODE.search(text):
        yield text


def path_of(language: str) -> Path:
    """The catalog of a language."""
    return SOURCE / "locale" / f"{language}.json"


# Where messages stand that reports put together of parts, so that no source has them whole.
COMPOSED = "(composed)"


def updated(old: Catalog, wanted: dict[str, str]) -> Catalog:
    """The catalog with an empty translation for what is new, and without what is no longer said."""
    known = {message: text for of_file in old.values() for message, text in of_file.items()}
    files = dict.fromkeys(old[COMPOSED], COMPOSED) | wanted
    return {
        file: {message: known.get(message, "") for message in sorted(files) if files[message] == file}
        for file in sorted(set(files.values()))
    }


def written(catalog: Catalog) -> str:
    """The catalog as a file: a line for each message."""
    return json.dumps(catalog, ensure_ascii=False, indent=0) + "\n"


if __name__ == "__main__":
    path = path_of("zh")
    catalog = updated(json.loads(path.read_text(encoding="utf-8")), messages())
    if "--update" in sys.argv:
        path.write_text(written(catalog), encoding="utf-8")
    for message in (one for of_file in catalog.values() for one, text in of_file.items() if not text):
        print(f"no translation: {message}")
