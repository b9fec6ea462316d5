"""Filters, and the command lines made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.toolchain.ncu_command import (
    Collection,
    KernelFilter,
    filter_of_functions,
    filter_of_mangled_names,
    ncu_command,
)
from opscope.toolchain.ncu_report import QUANTITIES, SECTIONS, TOPICS, WANTED, Quantity, metrics_to_collect


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::Iterator&)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::GeluCUDAKernelImpl(at::X &)",
    ],
)
def test_a_function_with_a_functor_is_found_however_it_is_spelled(name: str) -> None:
    assert filter_of_functions([("vectorized_elementwise_kernel", "GeluCUDAKernelImpl")]).covers(name)
    assert not filter_of_functions([("elementwise_kernel", None)]).covers(name)
    assert not filter_of_functions([("vectorized_elementwise_kernel", "Gelu")]).covers(name)


def test_several_functions_are_alternatives_named_once() -> None:
    both = filter_of_functions([("a", None), ("b", "c"), ("a", None)])
    assert both == KernelFilter(r"\ba\b|\bb\b.*\bc\b")


def test_mangled_names_are_matched_whole_and_only_special_characters_escaped() -> None:
    found = filter_of_mangled_names(["_Z1fv", "triton_poi.0$x-y"])
    assert found.arguments() == [
        "--kernel-name-base", "mangled", "--kernel-name", r"regex:^(_Z1fv|triton_poi\.0\$x-y)$",
    ]  # fmt: skip
    assert found.covers("triton_poi.0$x-y")
    assert not found.covers("_Z1fvi")


def test_the_command_of_a_collection() -> None:
    collection = Collection(
        KernelFilter("gemm"), 3, 2, sections=("Occupancy",), metrics=("a.sum", "b.sum"), metric_set="full"
    )
    command = ncu_command(
        collection, ["python", "x.py", "--lr", "1"], output=Path("o.ncu-rep"), log_file=Path("l")
    )
    assert " ".join(command) == (
        "ncu --target-processes all --replay-mode kernel --clock-control none --apply-rules no "
        "--kernel-name-base demangled --kernel-name regex:gemm --launch-skip 3 --launch-count 2 --set full "
        "--section Occupancy --metrics a.sum,b.sum --export o.ncu-rep --force-overwrite --log-file l "
        "python x.py --lr 1"
    )


def test_without_a_filter_every_launch_is_profiled() -> None:
    command = ncu_command(Collection(), ["./a.out"], output=Path("o.ncu-rep"))
    assert not any(option.startswith(("--kernel", "--launch")) for option in command)
    assert command[-1] == "./a.out"


def test_chips_that_name_metrics_differently() -> None:
    quantities = [Quantity.DRAM_READ_BYTES, Quantity.DRAM_WRITTEN_BYTES]
    assert metrics_to_collect("9.0", quantities) == ("dram__bytes_read.sum", "dram__bytes_write.sum")
    assert metrics_to_collect("12.0", quantities) == ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum")
    assert metrics_to_collect("12.1", quantities) == ()


def test_every_wanted_quantity_is_collected_by_a_metric_or_a_section() -> None:
    metrics = set(metrics_to_collect())
    for quantity in WANTED:
        entry = QUANTITIES[quantity]
        assert entry.section in SECTIONS or metrics & set(entry.names), quantity
    for topic in TOPICS.values():
        assert set(topic) <= set(WANTED)
