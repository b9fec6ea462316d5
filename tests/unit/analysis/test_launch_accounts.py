"""Which launches are accounted for, and with whose arguments."""

from __future__ import annotations

from collections.abc import Callable

import opscope
from opscope.analysis.launch_accounts import LaunchAccount
from opscope.analysis.parallelism import Heading
from opscope.analysis.summary import Summary
from opscope.model.session import Session
from opscope.testing import TraceBuilder

from .conftest import GELU_KERNEL

Load = Callable[..., Session]


def gelu_of(built: TraceBuilder, start: int, rows: int, kernel_us: int, kernel: str = GELU_KERNEL) -> None:
    arguments = {"Input Dims": [[rows, 1024]], "Input type": ["float"], "Input Strides": [[1024, 1]]}
    built.operator("aten::gelu", start, 10, **arguments).launch(start + 1)
    built.kernel(kernel, 1_000 + start, kernel_us, grid=[rows, 1, 1], block=[128, 1, 1])


def accounts(load: Load, built: TraceBuilder) -> dict[tuple[str | None, str], tuple[LaunchAccount, ...]]:
    return dict(opscope.summarize(load(built)).accounts)


def test_an_account_is_of_the_longest_launches_with_their_own_shapes(load: Load) -> None:
    built = TraceBuilder()
    for index, (rows, kernel_us) in enumerate([(4, 5), (64, 9), (2, 1)]):
        gelu_of(built, 100 * index, rows, kernel_us)
    found = accounts(load, built)["aten::gelu", GELU_KERNEL]
    assert [(one.shapes, one.geometry.grid) for one in found] == [
        ("[[64,1024]]", (64, 1, 1)),
        ("[[4,1024]]", (4, 1, 1)),
    ]
    parallel = found[0].account.under(Heading.PARALLEL_OVER)
    assert "65,536" in parallel[0].text


def test_every_kernel_is_accounted_for_under_its_operator_and_alone(load: Load) -> None:
    built = TraceBuilder()
    kernels = [GELU_KERNEL.replace("<4,", f"<{width},") for width in range(1, 21)]
    for index, kernel in enumerate(kernels):
        gelu_of(built, 100 * index, 4, 5, kernel)
    found = accounts(load, built)
    assert {kernel for owner, kernel in found if owner == "aten::gelu"} == set(kernels)
    assert {kernel for owner, kernel in found if owner is None} == set(kernels)


def test_a_name_nothing_is_known_of_has_no_account(load: Load) -> None:
    built = TraceBuilder().operator("x", 0, 10).launch(1).kernel("secret", 20, 5, grid=None, block=None)
    assert accounts(load, built) == {}


def test_the_launches_of_a_recording_are_explained(example_summary: Summary) -> None:
    (first, *_) = example_summary.accounts["aten::gelu", GELU_KERNEL]
    assert first.account.family == "vectorized elementwise"
    assert first.account.launch_check is not None
    assert first.account.launch_check.is_explained
    assert first.account.waves is not None
