"""Which evidence a Session gives: its labels, what it recorded, its devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.model.origin import (
    OperatorRegistration,
    RecordedKernel,
    RecordedSource,
    RecordedUnit,
    RegistrationKind,
    SourceEvidence,
    SourceKind,
)
from opscope.model.session import Session
from opscope.provenance.releases.catalog import release_versions
from opscope.provenance.resolution import evidence as gather
from opscope.provenance.resolution.evidence import Evidence, gather_evidence
from opscope.provenance.sources.index import SourceIndex
from opscope.testing import TraceBuilder

from .conftest import recorded_units

Load = Callable[..., Session]
Record = Callable[..., Path]
MakeIndex = Callable[..., SourceIndex]

COMMIT_OF_2_6 = "2236df1770800ffea5697b11b0bb0d910b2e59e1"
FILE = "aten/src/ATen/native/cuda/A.cu"


def trace(kernel: str = "k") -> TraceBuilder:
    return TraceBuilder().operator("aten::mm", 1, 5).launch(2).kernel(kernel, 9, 3)


def gathered(session: Session) -> Evidence:
    return gather_evidence(session, [name for (name,) in session.query("SELECT name FROM kernel_names")])


class TestLabels:
    def test_the_recorded_version_is_believed(self, load: Load, record: Record) -> None:
        evidence = gathered(load(record(trace(), torch="2.6.0+cu124")))
        assert (evidence.recognition.version, evidence.recognition.grade) == ("2.6.0", Grade.RELEASE_INDEX)
        assert (evidence.operators.version, evidence.operators.grade) == ("2.6.0", Grade.RELEASE_INDEX)
        (source,) = evidence.sources
        assert (source.index.version, source.grade) == ("2.6.0", Grade.RELEASE_INDEX)

    def test_a_release_without_tables_has_its_neighbors(self, load: Load, record: Record) -> None:
        evidence = gathered(load(record(trace(), torch="2.12.0+cu126")))
        recognition = evidence.recognition
        assert (recognition.version, recognition.grade) == ("2.12.1", Grade.NEIGHBOR_VERSION)
        assert recognition.release == "2.12.0"
        operators = evidence.operators
        assert (operators.version, operators.grade) == ("2.12.1", Grade.NEIGHBOR_VERSION)
        assert {source.grade for source in evidence.sources} == {Grade.NEIGHBOR_VERSION}

    def test_without_a_source_tree_headers_come_before_a_neighbors_tree(
        self, load: Load, record: Record
    ) -> None:
        evidence = gathered(load(record(trace(), torch="2.11.0")))
        assert [(source.index.version, source.grade) for source in evidence.sources] == [
            ("2.11.0+cu130", Grade.RELEASE_INDEX),
            ("2.6.0", Grade.NEIGHBOR_VERSION),
        ]

    def test_ranks_that_disagree_have_no_label(self, load: Load, record: Record) -> None:
        paths = [record(trace(), f"r{rank}.json", torch=f"2.6.{rank}") for rank in range(2)]
        evidence = gathered(load(paths))
        assert evidence.recognition.version is None
        assert evidence.operators.grade is Grade.NEIGHBOR_VERSION

    def test_a_trace_without_any_label_and_names_is_of_no_release(self, load: Load) -> None:
        evidence = gathered(load(trace()))
        assert evidence.recognition.version is None
        assert evidence.operators.version == release_versions()[-1]
        assert {source.grade for source in evidence.sources} == {Grade.NEIGHBOR_VERSION}


class TestLines:
    """`softmax_cuda_out`, line 1091 of the index, of a release whose libraries tell a range, 1420 to 1447."""

    @pytest.mark.parametrize(
        ("torch", "shown"), [("2.11.0", "1420–1447 bracket"), ("2.11.0a0+nv25.01", "≈1420 neighbor_version")]
    )
    def test_a_range_is_of_the_users_own_release(
        self, load: Load, record: Record, torch: str, shown: str
    ) -> None:
        evidence = gathered(load(record(trace(), torch=torch)))
        source = evidence.sources[-1]
        definition = source.index.functor("at::native::structured_softmax_cuda_out::impl")
        assert definition is not None
        place = source.locate(definition)
        softmax = evidence.operators.entry("aten::_softmax")
        assert softmax is not None
        tabled = evidence.location(softmax.served["CUDA"].place)
        assert tabled is not None
        assert (tabled.line, tabled.end_line, tabled.url) == (place.line, place.end_line, place.url)
        assert f"{str(place).partition(':')[2]} {place.line_grade}" == shown
        assert place.url is not None
        assert place.url.endswith("#L1420-L1447")


class TestInstalledTorch:
    @pytest.fixture(autouse=True)
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A torch of release 2.6.0."""
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(f"git_version = '{COMMIT_OF_2_6}'")
        monkeypatch.setattr(gather, "package_folders", lambda name: (tmp_path / name,))

    @pytest.mark.parametrize("commit", [COMMIT_OF_2_6, None])
    def test_of_the_build_that_recorded_the_libraries_are_asked(
        self, load: Load, record: Record, commit: str | None
    ) -> None:
        assert gathered(load(record(trace(), commit=commit))).libraries is not None

    @pytest.mark.parametrize(("torch", "commit"), [("2.6.0a0+git1", "b" * 40), ("2.11.0", None)])
    def test_of_another_build_they_are_not(
        self, load: Load, record: Record, torch: str, commit: str | None
    ) -> None:
        assert gathered(load(record(trace(), torch=torch, commit=commit))).libraries is None


class TestRecordedUnits:
    def test_units_and_their_library(self, load: Load, record: Record) -> None:
        kernel = RecordedKernel(
            "k", "libown.so", "ab", (RecordedUnit("b.cu", "1", "src/b.cu"), RecordedUnit("a.cu"))
        )
        recorded = gathered(load(record(trace(), kernels=(kernel,)))).recorded
        assert recorded == {"k": recorded_units("libown.so", ("a.cu", "b.cu"), (None, "src/b.cu"))}

    def test_a_library_that_tells_no_units(self, load: Load, record: Record) -> None:
        session = load(record(trace(), kernels=(RecordedKernel("k", "libcublas.so.12"),)))
        assert gathered(session).recorded == {"k": recorded_units("libcublas.so.12", (), ())}

    def test_ranks_of_other_builds_name_the_same_unit_once(self, load: Load, record: Record) -> None:
        unit = RecordedUnit("a.cu", "1", "src/a.cu")
        paths = [
            record(trace(), f"r{rank}.json", kernels=(RecordedKernel("k", "libown.so", build, (unit,)),))
            for rank, build in enumerate(("ab", "cd"))
        ]
        assert gathered(load(paths)).recorded == {"k": recorded_units("libown.so", ("a.cu",), ("src/a.cu",))}

    def test_libraries_that_share_a_name_are_not_told_apart(self, load: Load, record: Record) -> None:
        paths = [
            record(trace(), f"r{rank}.json", kernels=(RecordedKernel("k", library, None, (unit,)),))
            for rank, (library, unit) in enumerate(
                (("liba.so", RecordedUnit("a.cu")), ("libb.so", RecordedUnit("b.cu")))
            )
        ]
        assert gathered(load(paths)).recorded == {"k": recorded_units(None, ("a.cu", "b.cu"), (None, None))}

    def test_nor_are_units_known_if_one_of_them_tells_none(self, load: Load, record: Record) -> None:
        paths = [
            record(trace(), f"r{rank}.json", kernels=(RecordedKernel("k", library, None, units),))
            for rank, (library, units) in enumerate(
                (("liba.so", (RecordedUnit("a.cu"),)), ("libcublas.so.12", ()))
            )
        ]
        assert gathered(load(paths)).recorded == {"k": recorded_units(None, (), ())}


class TestOwnKernels:
    OURS = RecordedSource("k", SourceKind.CUDA, SourceEvidence.PROCESS, "/me/a.cu", 3, 9)

    def test_one_source_is_the_place(self, load: Load, record: Record) -> None:
        evidence = gathered(load(record(trace(), kernel_sources=(self.OURS,))))
        assert evidence.user_sources == {"k": SourceLocation("/me/a.cu", Grade.EXACT, 3, 9, Grade.EXACT)}
        assert evidence.triton_kernels == frozenset()

    def test_several_sources_are_none(self, load: Load, record: Record) -> None:
        other = RecordedSource("k", SourceKind.CUDA, SourceEvidence.PROCESS, "/me/b.cu", 3, 9)
        assert gathered(load(record(trace(), kernel_sources=(self.OURS, other)))).user_sources == {}

    @pytest.mark.parametrize("kind", [SourceKind.TRITON, SourceKind.INDUCTOR])
    def test_tritons_kernels_are_known_as_such(self, load: Load, record: Record, kind: SourceKind) -> None:
        ours = RecordedSource("k", kind, SourceEvidence.PROCESS, "/me/a.py", 3, 9)
        assert gathered(load(record(trace(), kernel_sources=(ours,)))).triton_kernels == {"k"}


def test_registrations_are_kept_by_overload(load: Load, record: Record) -> None:
    known = tuple(
        OperatorRegistration(name, RegistrationKind.CXX, kernels={"CUDA": None})
        for name in ("my::f.out", "my::f")
    )
    found = gathered(load(record(trace(), registrations=known))).registrations
    assert found == {one.name: one for one in known}


@pytest.mark.parametrize(
    ("builder", "backend"), [(trace(), "CUDA"), (TraceBuilder().operator("aten::mm", 1, 5), "CPU")]
)
def test_the_backend_is_that_of_the_recorded_devices(load: Load, builder: TraceBuilder, backend: str) -> None:
    assert gathered(load(builder)).backend == backend
