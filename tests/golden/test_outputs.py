"""What verbs print of every recording, as plain text in `outputs/`; `--update-golden` writes it.

Of each recording what people read first; of one of each kind (`KINDS`) all that verbs say. `make test` asks
the kinds, `make exhaustive` every recording. What is shown holds no English prose when it is translated.
"""

import contextlib
import difflib
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from opscope._version import __version__
from opscope.cli import console, main
from opscope.report.languages import Language, translated

from .english import english

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
SHARED = REPOSITORY.parent / "shared"
OUTPUTS = HERE / "outputs"

KINDS = frozenset((
    "opscope-bert_h200", "traces-public-HTA-cpu_only-rank-34.Jul_15_10_52_41.1074.pt.trace",
    "traces-public-HTA-amd_trace-mi250_minitoy_train_ROCm6_2_kineto", "traces-nsys-mock.sqlite",
    "compare-traces-h200-bert_bs8_seq128_infer-bert_eager_attn.json", "ncu-ops.ncu-rep",
    "benchmarks-results-h200_gelu", "no_recording",
))  # fmt: skip

Commands = Callable[[str, Path], Iterator[list[str]]]


class Source(NamedTuple):
    """A recording, and what is asked of it."""

    name: str
    path: Path
    commands: Commands

    @property
    def expectation(self):
        return OUTPUTS / f"{self.name}.txt"


def of_a_trace(path, folder):
    saved = str(folder / "saved.opscope")
    yield ["analyze", path, "--save", saved]
    document = json.loads(printed(["analyze", saved, "--json"]))
    for row in (*document["top_operators"][:1], *document["kernels"][:1]):
        yield ["explain", row["name"], "--trace", saved]


def of_a_kind(path, folder):
    yield from of_a_trace(path, folder)
    saved = str(folder / "saved.opscope")
    yield ["analyze", saved, "--json"]
    yield ["analyze", saved, "--top", "all", "--output", str(folder / "report.md")]
    yield ["stats", saved, "--report", "all", "--csv"]
    if path.endswith(".sqlite"):
        yield ["stats", path, "--report", "all"]
        yield ["stats", path, "--report", "all", "--json"]


def of_a_comparison(path, folder):
    reference, candidate = path.split("|")
    yield ["compare", reference, candidate, "--json"]
    yield ["compare", reference, candidate, "--output", str(folder / "comparison.md")]
    yield ["compare", candidate, reference, "--fail-on", "slower"]


def of_counters(path, folder):
    unpacked = folder / "ops.ncu-rep"
    unpacked.write_bytes(gzip.decompress(Path(path).read_bytes()))
    yield ["ncu", str(unpacked)]
    yield ["ncu", str(unpacked), "--json"]


def of_a_benchmark(path, folder):
    yield ["bench", path]
    yield ["bench", path, "--json"]
    yield ["bench", path, "--output", str(folder / "bench.md")]
    yield ["compare", path, path]


def of_no_recording(path, folder):
    yield ["devices"]
    yield ["devices", "H200"]
    yield ["devices", "B200", "--json"]
    for name in ("aten::addmm", "aten::_foreach_add_", "matrix", "SoftMax.cu"):
        yield ["explain", name, "--torch-version", "2.11.0"]
    yield ["explain", "aten::native_layer_norm", "--torch-version", "2.6.0"]
    yield ["explain", "aten::gelu", "--torch-version", "2.14.1", "--json"]


def sources():
    """All recordings at hand, the repository's and those beside it."""
    own = [REPOSITORY / "src/opscope/data/bert_h200.json.gz", *sorted(HERE.glob("traces/*.json.gz"))]
    own += sorted(HERE.glob("recorded/*.json.gz"))
    shared = [*sorted(SHARED.glob("traces/**/*.json.gz")), *sorted(SHARED.glob("traces/**/*.json"))]
    folders = sorted({path.parent for path in shared if path.parent.name.startswith("ddp")})
    known = {path.name for path in own}
    alone = [path for path in shared if path.parent not in folders and path.name not in known]
    exports = sorted(SHARED.glob("traces/nsys/*.sqlite"))
    found = [
        Source(slug(path), path, of_a_kind if slug(path) in KINDS else of_a_trace)
        for path in (*own, *alone, *folders, *exports)
    ]
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


def slug(path):
    root = SHARED if SHARED in path.parents else REPOSITORY
    parts = [part for part in path.relative_to(root).parts if part not in ("tests", "data", "src", "golden")]
    return "-".join(parts).removesuffix(".gz").removesuffix(".json")


def printed(command):
    """What a command prints, after its exit code if that is not 0."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(command)
    if "--json" in command and code == 0:
        return json.dumps(_clipped(json.loads(output.getvalue())), indent=1) + "\n"
    return output.getvalue() if code == 0 else f"exit {code}\n{errors.getvalue()}{output.getvalue()}"


def _clipped(value):
    """A JSON value with the first two of each list, and how many there are."""
    if isinstance(value, dict):
        return {key: _clipped(one) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    more = [f"… {len(value)} in all"] if len(value) > 2 else []
    return [*map(_clipped, value[:2]), *more]


def outputs(source, documents):
    """All that is said of a source, asked from the current folder; keeps of the documents what is ours."""
    folder, parts = Path("out"), []
    place = str(source.path).replace(str(SHARED), "shared").replace(str(REPOSITORY), "repository")
    for command in source.commands(place, folder):
        count = len(documents)
        lines = printed(command).splitlines(keepends=True)
        if command[0] == "stats" and len(lines) > 200:
            lines[200:] = [f"… {len(lines)} lines in all\n"]
        parts.append(f"\n$ opscope {' '.join(command)}\n{''.join(lines)}")
        if command[0] == "stats":
            del documents[count:]  # what nsys says, as it says it
        for path in sorted(path for path in folder.rglob("*.md") if path.is_file()):
            parts.append(f"\n# {path.name}\n{path.read_text(encoding='utf-8')}")
            path.unlink()
    text = "".join(parts).replace(__version__, "VERSION")
    return "\n".join(re.sub(r"─{3,}", "───", line.rstrip()) for line in text.splitlines()) + "\n"


def cases():
    exhaustive = pytest.mark.exhaustive(few=False)
    return [
        pytest.param(one, id=one.name, marks=() if one.name in KINDS else exhaustive) for one in sources()
    ]


@pytest.mark.parametrize("source", cases())
def test_verbs_say_what_they_always_said(source, tmp_path, monkeypatch, pytestconfig):
    chinese = []

    def shown(document, language):
        chinese.append(translated(document, Language.ZH))
        return translated(document, language)

    monkeypatch.setattr(console, "translated", shown)
    for name, value in {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Reports show and wrap paths as given: these are the same on every machine.
    (tmp_path / "out").mkdir()
    (tmp_path / "shared").symlink_to(SHARED)
    (tmp_path / "repository").symlink_to(REPOSITORY)
    monkeypatch.chdir(tmp_path)
    found = outputs(source, chinese)
    if pytestconfig.getoption("--update-golden"):
        OUTPUTS.mkdir(exist_ok=True)
        source.expectation.write_text(found, encoding="utf-8")
    if not source.expectation.exists() and SHARED in source.path.parents:
        pytest.skip(f"no {source.expectation.name} yet: --update-golden writes it")
    expected = source.expectation.read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(expected, found.splitlines(), "expected", "found", "", "", 2))
    if changed:
        pytest.fail("\n".join([*changed[:60], f"… {len(changed)} lines of difference"]), pytrace=False)
    assert chinese
    assert english(chinese) == []
