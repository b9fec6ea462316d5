"""Names without a recording: a Session that holds nothing else."""

from __future__ import annotations

import pytest

from opscope.provenance.resolution import annotate, session_of_names

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


def test_names_go_the_way_of_a_recording() -> None:
    operators = [("aten::mm", ""), ("aten::add", None), ("aten::mm", "out")]
    with session_of_names(operators, [ADD], torch_version="2.6.0") as session:
        annotate(session)
        assert session.query("SELECT torch_version, grade FROM recognition") == [("2.6.0", "release_index")]
        assert session.query("SELECT units, unit_grade FROM kernel_provenance") == [
            (["UfuncCUDA_add.cu"], "release_index")
        ]
        assert session.query(
            "SELECT name, overload, calls, self_device_ns FROM operator_functions ORDER BY ALL"
        ) == [("aten::add", None, 1, 0), ("aten::mm", "", 1, 0), ("aten::mm", "out", 1, 0)]


def test_its_device_is_cuda() -> None:
    with session_of_names([("aten::mm", "")], torch_version="2.6.0") as session:
        annotate(session)
        assert session.query("SELECT dispatch_key, cuda_function FROM native_functions") == [
            ("CUDA", "mm_out_cuda")
        ]


@pytest.mark.parametrize("kernels", [[], [ADD]])
def test_without_a_version_the_names_alone_tell(kernels: list[str]) -> None:
    with session_of_names([], kernels) as session:
        annotate(session)
        ((version, grade, candidates),) = session.query(
            "SELECT torch_version, grade, candidate_kernels FROM recognition"
        )
    assert (version, grade, candidates) == (("2.6.0", "neighbor_version", 1) if kernels else (None, None, 0))
