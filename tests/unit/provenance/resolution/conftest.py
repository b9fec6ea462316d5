"""A machine without torch and with an empty cache; source trees, evidence and recordings of a few lines."""

from textwrap import dedent

import pytest

from fakes import sidecar
from opscope.model.origin import Grade, RecordedKernel, RecordedUnit
from opscope.model.sidecar import Environment, sidecar_path, write_sidecar
from opscope.provenance.native_functions import packaged_table
from opscope.provenance.resolution.evidence import Evidence, IndexedSource
from opscope.provenance.resolution.resolvers import annotate
from opscope.provenance.torch_releases import Recognition
from torch_tables.definitions import tree_index


def recorded_units(library, names, paths, kernel="k"):
    """What a recording says of a kernel: its library, and names and paths of its units."""
    units = (RecordedUnit(name, None, path) for name, path in zip(names, paths, strict=True))
    return RecordedKernel(kernel, library, units=tuple(units))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The empty cache folder; what is known comes from recordings and packaged tables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packaged_table.cache_clear()
    yield tmp_path / "cache" / "opscope"
    packaged_table.cache_clear()


@pytest.fixture
def index_of(tmp_path):
    """The index of a source tree given as `{path: text}`."""
    roots = (tmp_path / f"tree{number}" for number in range(10))

    def build(files, version="2.6.0", git_version=None):
        root = next(roots)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return tree_index(root, version, git_version)

    return build


@pytest.fixture
def evidence_of(index_of):
    """Evidence of a recognized release, with the index of a small tree in place of the packaged ones."""

    def make(
        files=None, *, version="2.6.0", grade=Grade.RELEASE_INDEX, index_grade=Grade.RELEASE_INDEX, **fields
    ):
        table = packaged_table("2.6.0")
        assert table is not None
        fields.setdefault("operators", table)
        fields.setdefault("sources", (IndexedSource(index_of(files), index_grade),) if files else ())
        return Evidence(Recognition(version, grade, {}, 0), **fields)

    return make


@pytest.fixture
def record(tmp_path):
    """Writes a trace with the sidecar that its recording leaves, and returns its path."""

    def write(trace, name="trace.json", *, torch="2.6.0+cu124", commit=None, **fields):
        path = trace.write(tmp_path / name)
        environment = Environment(
            "3.12.1", "Linux x86_64", "0.1.0", torch=torch, torch_git_version=commit,
            cuda_runtime="12.4", cuda_driver="12.4",
        )  # fmt: skip
        write_sidecar(sidecar_path(path), sidecar(trace=name, environment=environment, **fields))
        return path

    return write


@pytest.fixture
def annotated(load):
    """Loads what `load` takes and fills its provenance tables."""

    def make(source):
        session = load(source)
        annotate(session)
        return session

    return make
