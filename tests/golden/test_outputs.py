"""What every verb prints of every trace, frozen; `--update-golden` writes the expectation.

One compressed file per source in `outputs/`: each command and what it printed or wrote, as JSON, text and
Markdown. `make test` holds a few sources, `make exhaustive` all of them.
`python tests/golden/test_outputs.py NAME` prints what is expected of one, without a name all names.
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import json
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opscope._version import __version__
from opscope.cli import main

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SHARED = REPOSITORY.parent / "shared"
OUTPUTS = HERE / "outputs"
EXPLAINED_OPERATORS = 8
EXPLAINED_KERNELS = 6

# Every verb and each kind of recording once: of a GPU with provenance, of a CPU, of Nsight Systems.
QUICK = frozenset((
    "opscope-bert_h200", "traces-public-HTA-cpu_only-rank-34.Jul_15_10_52_41.1074.pt.trace",
    "traces-nsys-mock.sqlite", "compare-traces-h200-bert_bs8_seq128_infer-bert_eager_attn.json",
    "ncu-ops.ncu-rep", "benchmarks-results-h200_gelu",
))  # fmt: skip

Commands = Callable[[str, Path], Iterator[list[str]]]


class Source(NamedTuple):
    """A recording, and what is asked of it."""

    name: str
    path: Path
    commands: Commands

    @property
    def expectation(self) -> Path:
        return OUTPUTS / f"{self.name}.txt.xz"


def of_a_trace(path: str, folder: Path) -> Iterator[list[str]]:
    saved = str(folder / "saved.opscope")
    yield ["analyze", path, "--json", "--all", "--save", saved]
    yield ["analyze", path]
    yield ["analyze", path, "--all", "--output-dir", str(folder / "report")]
    yield ["stats", path, "--report", "all", "--csv"]
    yield ["flamegraph", path, "--format", "collapsed"]
    yield from explanations(saved)


def of_an_export(path: str, folder: Path) -> Iterator[list[str]]:
    yield from of_a_trace(path, folder)
    yield ["stats", path, "--report", "all"]
    yield ["stats", path, "--report", "all", "--json"]


def explanations(path: str) -> Iterator[list[str]]:
    """Of the operators and kernels that take the most time."""
    document = json.loads(printed(["analyze", path, "--json", "--top", str(EXPLAINED_KERNELS)]))
    operators = [row["name"] for row in document["top_operators"][:EXPLAINED_OPERATORS]]
    kernels = [row["name"] for row in document["kernels"][:EXPLAINED_KERNELS]]
    for name in dict.fromkeys(operators):
        yield ["explain", name, "--trace", path]
    yield ["explain", operators[0], "--trace", path, "--json"] if operators else ["devices"]
    for name in dict.fromkeys(kernels):
        yield ["explain", name, "--trace", path]


def of_a_comparison(path: str, folder: Path) -> Iterator[list[str]]:
    reference, candidate = path.split("|")
    report = str(folder / "comparison.md")
    yield ["compare", reference, candidate, "--all", "--json"]
    yield ["compare", reference, candidate, "--output", report]
    yield ["compare", candidate, reference, "--fail-on", "different"]


def of_counters(path: str, folder: Path) -> Iterator[list[str]]:
    unpacked = folder / "ops.ncu-rep"
    unpacked.write_bytes(gzip.decompress(Path(path).read_bytes()))
    yield ["ncu", str(unpacked)]
    yield ["ncu", str(unpacked), "--json"]


def of_a_benchmark(path: str, folder: Path) -> Iterator[list[str]]:
    yield ["bench", path]
    yield ["bench", path, "--json"]
    yield ["bench", path, "--output", str(folder / "bench.md")]
    yield ["compare", path, path]


def of_no_recording(path: str, folder: Path) -> Iterator[list[str]]:
    yield ["devices"]
    yield ["devices", "--json"]
    for device in ("H200", "A100", "RTX 4090", "B200"):
        yield ["devices", device]
    yield ["index"]
    names = (
        "aten::gelu aten::addmm aten::mm aten::_softmax aten::native_layer_norm aten::add.Tensor aten::copy_ "
        "aten::convolution aten::scaled_dot_product_attention aten::_foreach_add_ aten::sort aten::embedding "
        "matrix normalization SoftMax.cu layer_norm_kernel.cu"
    )
    for name in names.split():
        for release in ("2.6.0", "2.11.0", "2.14.1"):
            yield ["explain", name, "--torch-version", release]
        yield ["explain", name, "--torch-version", "2.13.0", "--json"]


def sources() -> list[Source]:
    """All recordings at hand, the repository's and those beside it."""
    own = [REPOSITORY / "src/opscope/data/bert_h200.json.gz", *sorted(HERE.glob("traces/*.json.gz"))]
    own += sorted(HERE.glob("recorded/*.json.gz"))
    shared = [*sorted(SHARED.glob("traces/**/*.json.gz")), *sorted(SHARED.glob("traces/**/*.json"))]
    folders = sorted({path.parent for path in shared if path.parent.name.startswith("ddp")})
    known = {path.name for path in own}
    alone = [path for path in shared if path.parent not in folders and path.name not in known]
    found = [Source(slug(path), path, of_a_trace) for path in (*own, *alone, *folders)]
    found += [Source(slug(path), path, of_an_export) for path in sorted(SHARED.glob("traces/nsys/*.sqlite"))]
    traces = SHARED / "traces"
    pairs = [
        (
            traces / "public/HTA/tests/data/trace_diff/control",
            traces / "public/HTA/tests/data/trace_diff/test",
        ),
        (traces / "h200/ddp_w4", traces / "h200/ddp_straggler_w4"),
        (traces / "h200/bert_bs8_seq128_infer.json.gz", traces / "h200/bert_eager_attn.json.gz"),
    ]
    for reference, candidate in pairs:
        if reference.exists():
            both = Path(f"{reference}|{candidate}")
            found.append(Source(f"compare-{slug(reference)}-{candidate.stem}", both, of_a_comparison))
    found += [Source(slug(path), path, of_counters) for path in SHARED.glob("ncu/*.gz")]
    results = REPOSITORY / "benchmarks/results"
    found += [Source(slug(path), path, of_a_benchmark) for path in [results / "h200_gelu.json"]]
    return [*found, Source("no_recording", REPOSITORY, of_no_recording)]


def slug(path: Path) -> str:
    root = SHARED if SHARED in path.parents else REPOSITORY
    parts = [part for part in path.relative_to(root).parts if part not in ("tests", "data", "src", "golden")]
    return "-".join(parts).removesuffix(".gz").removesuffix(".json")


def printed(command: list[str]) -> str:
    """What a command prints, after its exit code if that is not 0."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(command)
    return output.getvalue() if code == 0 else f"exit {code}\n{errors.getvalue()}{output.getvalue()}"


def outputs(source: Source) -> str:
    """All that is said of a source, asked from the current folder: see the test."""
    folder, parts = Path("out"), []
    place = str(source.path).replace(str(SHARED), "shared").replace(str(REPOSITORY), "repository")
    for command in source.commands(place, folder):
        parts.append(f"\n$ opscope {' '.join(command)}\n{printed(command)}")
        written = sorted(path for path in folder.rglob("*.md") if path.is_file())
        for path in written:
            parts.append(f"\n# {path.name}\n{path.read_text(encoding='utf-8')}")
            path.unlink()
        for path in folder.rglob("analysis.json"):
            path.unlink()
    lines = (line.rstrip() for line in "".join(parts).replace(__version__, "VERSION").splitlines())
    return "\n".join(re.sub(r"─{3,}", "───", line) for line in lines) + "\n"


def cases() -> list[Any]:
    """Every source; `make exhaustive` runs those that are not quick."""
    marks = {True: (), False: (pytest.mark.exhaustive(few=False),)}
    return [pytest.param(one, id=one.name, marks=marks[one.name in QUICK]) for one in sources()]


@pytest.mark.parametrize("source", cases())
def test_verbs_say_what_they_always_said(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    for name, value in {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Reports show and wrap paths as given: these are the same on every machine.
    (tmp_path / "out").mkdir()
    (tmp_path / "shared").symlink_to(SHARED)
    (tmp_path / "repository").symlink_to(REPOSITORY)
    monkeypatch.chdir(tmp_path)
    found = outputs(source)
    if pytestconfig.getoption("--update-golden"):
        OUTPUTS.mkdir(exist_ok=True)
        source.expectation.write_bytes(lzma.compress(found.encode(), preset=9))
    if not source.expectation.exists() and SHARED in source.path.parents:
        pytest.skip(f"no {source.expectation.name} yet: --update-golden writes it")
    expected = read(source)
    if found != expected:
        changed = difference(expected, found)
        (Path(os.environ.get("GOLDEN_DIFF", tmp_path)) / f"{source.name}.diff").write_text("\n".join(changed))
        pytest.fail("\n".join([*changed[:60], f"… {len(changed)} lines of difference"]), pytrace=False)


def difference(expected: str, found: str) -> list[str]:
    return list(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), "expected", "found", "", "", 2)
    )


def read(source: Source) -> str:
    return lzma.decompress(source.expectation.read_bytes()).decode()


if __name__ == "__main__":
    wanted = sys.argv[-1]
    for one in sources():
        if one.name == wanted:
            sys.stdout.write(read(one))
        elif len(sys.argv) == 1:
            print(one.name)
