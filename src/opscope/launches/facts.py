"""What is known of one launch, and what a rule works out of it: values for sentences, launches expected.

Whatever is missing or not understood is None; nothing that needs it is said. The sentences are data
(`launch_explanations.toml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from opscope.hardware.architectures import Architecture, architecture
from opscope.hardware.occupancy import ActiveBlocks, Waves, active_blocks, waves_of

if TYPE_CHECKING:  # arguments and totals may import this package
    from opscope.operators.arguments import CallArguments, TensorArgument
    from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel

Extent = tuple[int, int, int]


def parse_compile_arguments(text: str | None) -> dict[str, int]:
    """Numbers of the recorded `XBLOCK=4,RBLOCK=256`; other values are left out."""
    parts = (part.partition("=") for part in (text or "").split(","))
    return {name.strip(): int(value) for name, _, value in parts if value.strip().lstrip("-").isdecimal()}


class LaunchGeometry(msgspec.Struct, frozen=True):
    """One distinct launch configuration of a kernel, with its share of the kernel's calls and time.

    `example_operator_id` is the operator call of its longest launch; None outside operators.
    """

    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers_per_thread: int | None
    shared_memory_bytes: int | None
    occupancy_estimate: float | None
    calls: int
    total_ns: int
    example_operator_id: int | None = None


class DeviceFacts(msgspec.Struct, frozen=True):
    """The device a kernel ran on. Limits given here win over those known of the compute capability."""

    name: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    max_threads_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None

    @property
    def limits(self) -> Architecture | None:
        if (known := architecture(self.compute_capability)) is None:
            return None
        return replace(
            known,
            max_threads_per_sm=self.max_threads_per_sm or known.max_threads_per_sm,
            registers_per_sm=self.registers_per_sm or known.registers_per_sm,
            shared_bytes_per_sm=self.shared_memory_per_sm_bytes or known.shared_bytes_per_sm,
        )


class LaunchFacts(msgspec.Struct, frozen=True, dict=True):
    """One launch configuration of a kernel under one operator call."""

    kernel: DecodedKernel
    geometry: LaunchGeometry
    call: CallArguments | None = None  # the operator call; None if unknown
    device: DeviceFacts | None = None  # None if unknown
    # Of a Triton kernel, by name: `{"XBLOCK": 1024}`
    compile_arguments: Mapping[str, int] = msgspec.field(default_factory=dict)
    torch_version: str | None = None  # release that launched it, `"2.11.0"`; None if unknown
    size_bytes: int | None = None  # bytes a copy or memory set moved

    @property
    def grid(self) -> Extent | None:
        """Blocks of the grid; unknown where a trace gives an extent that no launch can have."""
        return _possible(self.geometry.grid)

    @property
    def block(self) -> Extent | None:
        """Threads of a block; unknown where a trace gives an extent that no launch can have."""
        return _possible(self.geometry.block)

    @property
    def block_count(self) -> int | None:
        return None if self.grid is None else prod(self.grid)

    @property
    def thread_count(self) -> int | None:
        return None if self.block is None else prod(self.block)

    @property
    def sm_count(self) -> int | None:
        return None if self.device is None else self.device.sm_count

    @cached_property
    def active(self) -> ActiveBlocks | None:
        """Active blocks of one multiprocessor; None if a figure or the device's limits are unknown."""
        limits = None if self.device is None else self.device.limits
        if limits is None or self.thread_count is None:
            return None
        return active_blocks(
            limits,
            threads=self.thread_count,
            registers_per_thread=self.geometry.registers_per_thread,
            shared_bytes=self.geometry.shared_memory_bytes,
        )

    @property
    def waves(self) -> Waves | None:
        """Waves on the device; None if the multiprocessors or their limits are unknown."""
        if self.active is None:
            return None
        return waves_of(self.active, blocks=self.block_count or 0, sm_count=self.sm_count or 0)

    @property
    def function_name(self) -> str:
        """The kernel's function without its namespaces."""
        return (self.kernel.function or "").rpartition("::")[2]

    def template_argument(self, position: int) -> str | None:
        arguments = self.kernel.template_arguments
        return arguments[position] if -len(arguments) <= position < len(arguments) else None

    def template_integer(self, position: int) -> int | None:
        """The integer template argument at a position: `128`, `64u`, `(int)4`, `true`."""
        text = (self.template_argument(position) or "").rpartition(")")[2].strip().rstrip("uUlL")
        if text in ("true", "false"):
            return int(text == "true")
        return int(text) if text.lstrip("-").isdecimal() else None

    def tensor(self, *names: str) -> TensorArgument | None:
        return None if self.call is None else self.call.tensor(*names)


def _possible(extent: Extent | None) -> Extent | None:
    return extent if extent is not None and min(extent) > 0 else None


class Expected(msgspec.Struct, frozen=True):
    """The launch one documented configuration gives for the recorded arguments; None: left open."""

    formula: str
    grid: Extent
    block: Extent | None = None

    def matches(self, launch: LaunchFacts) -> bool:
        """Whether the recorded launch is this one; a grid that is unknown never is."""
        return self.grid == launch.grid and (None in (self.block, launch.block) or self.block == launch.block)


class Prediction(msgspec.Struct, frozen=True):
    """Values for the sentences (None: unknown) and the launches expected, the likeliest first."""

    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    expected: Sequence[Expected] = ()


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def ceiling(value: int, divisor: int) -> str:
    """`ceil(1,000 / 512)`."""
    return f"ceil({value:,} / {divisor:,})"


def shape_text(shape: Sequence[int]) -> str:
    """`16×256×768`; a tensor without dimensions is a scalar."""
    return "×".join(f"{size:,}" for size in shape) if shape else "scalar"


def extent_text(extent: Extent | None) -> str:
    """`132×2` for (132, 2, 1): trailing ones are left out."""
    if extent is None:
        return "unknown"
    shown = 3 if extent[2] != 1 else 2 if extent[1] != 1 else 1
    return shape_text(extent[:shown])


def extents(text: str | None) -> tuple[int, ...]:
    """`128x64x8`, as names have it, as numbers; empty if it is something else."""
    parts = (text or "").split("x")
    return tuple(map(int, parts)) if all(part.isdecimal() and int(part) > 0 for part in parts) else ()
