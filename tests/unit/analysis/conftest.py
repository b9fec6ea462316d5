"""Names of real kernels, the packaged recording, and Sessions whose provenance is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import opscope
from opscope.analysis.summary import Summary
from opscope.model.session import Session

GELU = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}"  # noqa: E501
GELU_KERNEL = f"void at::native::vectorized_elementwise_kernel<4, {GELU}, std::array<char*, 2ul> >(int, {GELU}, std::array<char*, 2ul>)"  # noqa: E501
FILL_KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"  # noqa: E501
FILL_KERNEL_MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder without what the user of this machine added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def example() -> Iterator[Session]:
    """The packaged recording: BERT on an H200, by PyTorch 2.11."""
    with opscope.load(opscope.example_trace()) as session:
        yield session


@pytest.fixture(scope="module")
def example_summary(example: Session) -> Summary:
    return opscope.summarize(example)


@pytest.fixture
def annotated() -> Callable[..., Session]:
    """Writes a Session's provenance by hand: by kernel name, and by operator name."""

    def write(
        session: Session, kernels: Mapping[str, Mapping[str, Any]], functions: Mapping[str, Mapping[str, Any]]
    ) -> Session:
        ids = dict(session.query("SELECT name, name_id FROM kernel_names"))
        session.replace_rows(
            "kernel_provenance",
            [
                {"name_id": name_id, "category": "other", **kernels.get(name, {})}
                for name, name_id in ids.items()
            ],
        )
        times = session.query(
            "SELECT name, count(*), sum(self_device_ns)::BIGINT FROM operators GROUP BY ALL ORDER BY name"
        )
        session.replace_rows(
            "native_functions",
            [
                {
                    "native_function_id": index,
                    "name": name,
                    "kind": "native",
                    "category": "other",
                    **functions.get(name, {}),
                }
                for index, (name, _, _) in enumerate(times)
            ],
        )
        session.replace_rows(
            "operator_functions",
            [
                {"name": name, "native_function_id": index, "calls": calls, "self_device_ns": self_ns}
                for index, (name, calls, self_ns) in enumerate(times)
            ],
        )
        session.replace_rows("recognition", [{"torch_version": "2.6.0", "grade": "exact", "reason": "given"}])
        return session

    return write
