"""The device of a Session and its limits, and how launches run there: in parallel how, and filling how much.

Limits are of a file the user gives, else the newest measurement of the same GPU in a folder, else the data
sheet's. A recording of several kinds of GPU has none: a fraction would refer to one of them only.

Facts of the recorded geometry and of the device alone, per launch configuration; no guess at what a kernel
does with its blocks. Products, convolutions and attention are work for tensor cores: what ran is read from
the kernel's name, what could run from the operands and the compute capability. A name that does not tell
gives None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope.analysis.totals import KernelTotal, OperatorTotal
from opscope.errors import InputError
from opscope.hardware.architectures import WARP_SIZE
from opscope.hardware.devices import DataType, DeviceSpec, cuda_capability, match_device
from opscope.hardware.limits import DeviceLimits, match_limits, mismatch, read_folder, read_measured
from opscope.hardware.occupancy import Limiter
from opscope.launches.facts import DeviceFacts, LaunchFacts, LaunchGeometry, parse_compile_arguments
from opscope.launches.launch_explanation import LaunchExplanation, explain
from opscope.model.origin import is_program_file, parse_frame
from opscope.model.queries import sql
from opscope.model.session import Session
from opscope.operators.arguments import parse_arguments
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.text_enum import MeaningEnum

# One that is only described did none of the work.
_USED_SQL = """
SELECT DISTINCT name, compute_major || '.' || coalesce(compute_minor, 0), sm_count, max_threads_per_sm,
    registers_per_sm, shared_memory_per_sm_bytes, memory_bytes
FROM devices WHERE activity_count > 0 ORDER BY ALL"""


def used_devices(session: Session) -> list[tuple[DeviceFacts, int | None]]:
    """Facts of each device in use, and its memory in bytes."""
    return [(DeviceFacts(*facts), memory_bytes) for *facts, memory_bytes in session.known(_USED_SQL)]


def common_device(session: Session) -> DeviceFacts | None:
    """Facts of the devices in use, as CUDA counts; None where they differ or there is none."""
    devices = {device for device, _ in used_devices(session)}
    if len(devices) != 1:
        return None
    device = devices.pop()
    return replace(device, compute_capability=cuda_capability(device.name, device.compute_capability))


def common_spec(session: Session) -> DeviceSpec | None:
    """The GPU that all devices in use are; None where they differ or it is not known."""
    devices = {(device.name, device.sm_count) for device, _ in used_devices(session)}
    name, sm_count = devices.pop() if len(devices) == 1 else (None, None)
    return None if name is None else match_device(name, sm_count=sm_count).spec


def limits_of_session(
    session: Session, measured_dir: Path | None = None, ceilings_file: Path | None = None
) -> tuple[DeviceLimits | None, str | None]:
    """The limits of the GPU a Session was recorded on; and why there are none, or what was passed over.

    Raises:
        InputError: The file cannot be used, or is of another GPU than the recording.
    """
    given = None if ceilings_file is None else read_measured(ceilings_file)
    devices = used_devices(session)
    if not devices:
        return None, "no work of a GPU was recorded"
    device, memory_bytes = devices[0]
    if not all(_is_alike(devices[0], other) for other in devices[1:]):
        titles = (
            (one.name or "one without a name")
            + ("" if one.sm_count is None else f" ({one.sm_count} multiprocessors)")
            for one, _ in devices
        )
        names = ", ".join(dict.fromkeys(titles))
        return None, f"work of different GPUs was recorded: {names}"
    name, note = device.name, None
    facts: dict[str, Any] = {
        "compute_capability": device.compute_capability,
        "sm_count": device.sm_count,
        "memory_bytes": memory_bytes,
    }
    if name is None:
        # Of a recording that does not name its GPU: those of the given file, on its user's word.
        if given is None:
            return None, "the recording does not name its GPU"
        name, note = given.device, f"the recording does not name its GPU; '{given.device}' was given"
        facts = {fact: getattr(given, fact) for fact in facts}
    elif given is not None and (difference := mismatch(given, name, **facts)) is not None:
        raise InputError(
            f"these limits are not those of the recording: {difference}",
            source=ceilings_file,
            hint="Measure the GPU it was recorded on, or leave the file out",
        )
    elif given is None and measured_dir is not None:
        usable, ignored = read_folder(measured_dir)
        given = next((one for one in reversed(usable) if mismatch(one, name, **facts) is None), None)
        if ignored:
            note = f"measurements that could not be used: {'; '.join(ignored)}"
    limits, reason = match_limits(name, **facts, measured=given)
    return limits, reason or note


def _is_alike(one: tuple[DeviceFacts, int | None], other: tuple[DeviceFacts, int | None]) -> bool:
    kinds = {(device.name, device.compute_capability, device.sm_count) for device, _ in (one, other)}
    if len(kinds) > 1 or one[1] is None or other[1] is None:
        return len(kinds) == 1 and one[1] == other[1]
    # Drivers reserve a little more or less of the memory of devices of one kind.
    return abs(one[1] - other[1]) <= 0.01 * one[1]


class LaunchQuality(LaunchFacts, frozen=True):
    """One launch configuration of a kernel under one operator; None is unknown, no operator too."""

    operator: str | None = None

    @property
    def occupancy(self) -> float | None:
        """Resident warps of a full multiprocessor over the most there can be, 0–1."""
        return None if self.active is None else self.active.occupancy

    @property
    def limiters(self) -> tuple[Limiter, ...]:
        return () if self.active is None else self.active.limiters

    @property
    def idle_sm_count(self) -> int | None:
        if self.block_count is None or self.sm_count is None:
            return None
        return max(0, self.sm_count - self.block_count)

    @property
    def is_underfilled(self) -> bool | None:
        """Fewer blocks than one wave: certain below one block per multiprocessor, whatever one holds."""
        if self.idle_sm_count:
            return True
        return None if self.waves is None else self.waves.count < 1

    @property
    def partial_warp_loss(self) -> float | None:
        """Share of a block's thread slots that its last warp leaves empty, 0–1."""
        if self.thread_count is None:
            return None
        unused = -self.thread_count % WARP_SIZE
        return unused / (self.thread_count + unused)


class ExplainedLaunch(msgspec.Struct, frozen=True):
    """One launch configuration and its explanation; `shapes` are the arguments of its call, as JSON."""

    kernel: str
    geometry: LaunchGeometry
    explanation: LaunchExplanation
    shapes: str | None


def launch_quality(session: Session, launches: list[dict[str, Any]]) -> tuple[LaunchQuality, ...]:
    """Every launch configuration of every kernel, by operator, most device time first."""
    device = common_device(session)
    found = [
        LaunchQuality(
            decode(row["name"]), msgspec.convert(row, LaunchGeometry), device=device, operator=row["operator"]
        )
        for row in launches
        if row["kind"] == "kernel"
    ]
    return tuple(sorted(found, key=lambda one: (-one.geometry.total_ns, one.kernel.name, one.operator or "")))


class LeadingKernel(msgspec.Struct, frozen=True):
    """A kernel of the program's own, its operator, and `file:line function` of its longest launch."""

    name: str
    operator: str | None
    total_ns: int
    line: str | None  # outside of operators


def leading_kernel(
    session: Session, kernels: Iterable[KernelTotal], operators: Sequence[OperatorTotal]
) -> LeadingKernel | None:
    """The longest of kernels of no operator, or of a function of the program's; None if another leads."""
    # Of a function of the program's own, which has no namespace, and not what inductor made of it.
    inside = (
        (one.name, kernel)
        for one in operators
        for kernel in one.kernels
        if one.name.isidentifier() and not kernel.name.startswith("triton_")
    )
    alone = ((None, kernel) for kernel in kernels)
    operator, longest = max(
        (one for one in (*inside, *alone) if one[1].kind == "kernel"),
        key=lambda one: one[1].total_ns,
        default=(None, None),
    )
    library = longest and longest.facts and longest.facts.library
    most_ns = max((one.self_device_ns for one in operators if one.name != operator), default=0)
    if longest is None or library not in (None, "triton") or longest.total_ns <= most_ns:
        return None
    frames = session.query(_FRAMES_SQL, [longest.name])
    stack = (frame for (name,) in frames if (frame := parse_frame(name)) is not None)
    line = next((f"{one.file}:{one.line} {one.function}" for one in stack if is_program_file(one.file)), None)
    return LeadingKernel(longest.name, operator, longest.total_ns, line)


# Frames around its longest launch, the innermost first.
_FRAMES_SQL = """
SELECT f.name FROM frames f JOIN (
    SELECT c.thread_id, c.start_ns FROM device_activities a JOIN kernel_names n USING (name_id)
    JOIN runtime_calls c USING (runtime_call_id) WHERE n.name = ? AND a.operator_id IS NULL
    ORDER BY a.duration_ns DESC, a.activity_id LIMIT 1) c USING (thread_id)
WHERE c.start_ns BETWEEN f.start_ns AND f.start_ns + duration_ns AND f.name IS NOT NULL
ORDER BY f.start_ns DESC, frame_id DESC"""


def launch_explanations(
    session: Session,
    operators: Iterable[OperatorTotal],
    kernels: Iterable[KernelTotal] = (),
    *,
    torch_version: str | None = None,
) -> dict[tuple[str | None, str], tuple[ExplainedLaunch, ...]]:
    """Explanations by (operator name, kernel name); the operator is None for `kernels` of whichever one."""
    # Of each kernel the two configurations that take longest.
    wanted = [
        (owner, kernel, geometry)
        for owner, of in [*((one.name, one.kernels) for one in operators), (None, tuple(kernels))]
        for kernel in of
        for geometry in kernel.configurations[:2]
    ]
    ids = sorted({one.example_operator_id for _, _, one in wanted if one.example_operator_id is not None})
    calls = {row["operator_id"]: row for row in session.records(sql(__package__, "example_calls"), [ids])}
    device = common_device(session)
    found: dict[tuple[str | None, str], tuple[ExplainedLaunch, ...]] = {}
    for owner, kernel, geometry in wanted:
        row = calls.get(geometry.example_operator_id) or {}
        arguments = {column: row.get(column) for column in ("shapes", "types", "strides", "concrete")}
        told = explain(
            LaunchFacts(
                kernel=decode(kernel.name),
                geometry=geometry,
                call=parse_arguments(row["name"], **arguments) if row else None,
                device=device,
                compile_arguments=parse_compile_arguments(row.get("kernel_kwargs")),
                torch_version=torch_version,
                size_bytes=None if kernel.size_bytes is None else kernel.size_bytes // kernel.calls,
            )
        )
        if told is not None:
            one = ExplainedLaunch(kernel.name, geometry, told, arguments["shapes"])
            found[owner, kernel.name] = (*found.get((owner, kernel.name), ()), one)
    return found


class TensorCoreUse(MeaningEnum):
    USED = "used", "computed on tensor cores"
    ELIGIBLE = "eligible", "could run on tensor cores, and does not"
    NOT_APPLICABLE = "not_applicable", "no work for tensor cores"


# Families of which every kernel multiplies matrices, or convolves, or attends.
_PRODUCTS = frozenset(
    (
        "gemm", "grouped_gemm", "moe_gemm", "triangular_multiply", "symmetric_multiply", "rank_update",
        "attention_flash", "attention_mem_efficient", "attention_cudnn", "attention_paged", "attention",
        "convolution",
    )
)  # fmt: skip
# Parts of attention and convolution kernels that prepare or finish, under the name of the whole.
_PARTS = re.compile(
    r"dot_do_o|convert_d[qkv]|dq_reduce|_combine|Combine|reduce_wgrad|transformBias|preprocess"
)
# cuBLAS kernels for products too narrow for a matrix instruction: few columns, or an inner size of 1.
_NARROW = re.compile(r"\bgemmSN_[TN]{2}_kernel|\bgemmk1_kernel")
# Kernels of cuBLAS and cuDNN that multiply and add on CUDA cores; some since before there were tensor cores.
_CUDA_CORE_FUNCTIONS = re.compile(
    r"\bmagma_[sdcz]gemm|\b[sdcz]gemm_largek|\b(?:im|ex)plicit_convolve_[sdh]gemm|\bprecomputed_convolve_[sdh]gemm"
    r"|\bwgrad_alg0_engine|\b[dw]grad(?:2d)?_(?:alg\w+_)?engine|\bwinograd|\bfft[12]d_[rc]2[rc]|\bconv2d_grouped_direct"
)
_MATRIX_TYPES = re.compile(
    r"MmaTensorOp|OpClass(?:Wmma)?TensorOp|SM\d+_\w*MMA|MainloopSm(?:90|100|120)\w*(?:Gmma|Umma)"
)
# Tensor core operands by the first compute capability that multiplies them so.
# Source: CUDA C++ Programming Guide 13.0, Tensor core input data types supported by compute capability.
_FIRST_CAPABILITY = {
    DataType.FP16: (7, 0),
    DataType.FP16_FP16_ACCUMULATE: (7, 0),
    DataType.INT8: (7, 2),
    DataType.FP32: (8, 0),  # as TF32
    DataType.TF32: (8, 0),
    DataType.BF16: (8, 0),
    DataType.FP8: (8, 9),
    DataType.FP8_FP16_ACCUMULATE: (8, 9),
    DataType.FP4: (10, 0),
}
# Double precision runs faster on tensor cores only here: 8.6 and later consumer chips have a token rate, and
# 10.0 has the same peak on both. Source: NVIDIA A100, H100 and B200 datasheets.
_FP64_CAPABILITIES = frozenset(((8, 0), (9, 0)))
_OPERANDS = {
    "f64": DataType.FP64, "f32": DataType.FP32, "tf32": DataType.TF32, "f16": DataType.FP16,
    "bf16": DataType.BF16, "e4m3": DataType.FP8, "e5m2": DataType.FP8, "e4m3fnuz": DataType.FP8,
    "e5m2fnuz": DataType.FP8, "s8": DataType.INT8, "u8": DataType.INT8, "e2m1": DataType.FP4,
    "cf64": DataType.FP64, "cf32": DataType.FP32, "cf16": DataType.FP16, "cbf16": DataType.BF16,
}  # fmt: skip
# Types that `tl.dot` of Triton always gives to matrix instructions; fp32 depends on the precision asked.
_DOT_TYPES = frozenset((DataType.FP16, DataType.BF16, DataType.FP8, DataType.INT8))


def tensor_core_use(
    kernel: DecodedKernel, data_type: DataType | None = None, compute_capability: str | None = None
) -> TensorCoreUse | None:
    """What one kernel did; None where its name or the device does not tell.

    Without a type of the operands, what the name says counts.
    """
    if kernel.family is None:
        return None
    if not is_product(kernel):
        return TensorCoreUse.NOT_APPLICABLE
    use, operands = _read(kernel, data_type), data_type or operand_type(kernel)
    if use is not TensorCoreUse.ELIGIBLE:
        return use
    # Eligible only where the device has tensor cores for the operands.
    available = None if operands is None else has_tensor_cores_for(operands, compute_capability)
    return None if available is None else use if available else TensorCoreUse.NOT_APPLICABLE


def passes_of(kernel: DecodedKernel, data_type: DataType | None) -> int:
    """How often matrix instructions multiply each pair of numbers."""
    is_fp32 = (operand_type(kernel) or data_type) in (DataType.FP32, DataType.TF32)
    is_split = kernel.tensor_core is None and _memory_efficient(kernel, data_type) is TensorCoreUse.USED
    # fp32 split in two TF32 numbers each, multiplied in three passes.
    # Source: NVIDIA/cutlass, include/cutlass/arch/mma.h (`OpMultiplyAddFastF32`).
    return 3 if is_fp32 and is_split else 1


def is_product(kernel: DecodedKernel) -> bool:
    """Whether a kernel multiplies matrices, convolves or attends, so that tensor cores may do its work."""
    return kernel.family in _PRODUCTS and _PARTS.search(kernel.function or kernel.name) is None


def operand_type(kernel: DecodedKernel) -> DataType | None:
    """Type a kernel multiplies in, as its name says: of the multiplication where it names that apart."""
    if kernel.multiply_type in _OPERANDS:
        return _OPERANDS[kernel.multiply_type]
    return None if kernel.operand_type is None else _OPERANDS.get(kernel.operand_type)


def has_tensor_cores_for(data_type: DataType, compute_capability: str | None) -> bool | None:
    """Whether tensor cores take such operands, faster than CUDA cores do; None for an unknown device."""
    major, dot, minor = (compute_capability or "").partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        return None
    capability = int(major), int(minor)
    if data_type in (DataType.FP64, DataType.FP64_TENSOR):
        return capability in _FP64_CAPABILITIES
    return capability >= _FIRST_CAPABILITY[data_type]


def _read(  # noqa: PLR0911 - each sign says what it tells
    kernel: DecodedKernel, data_type: DataType | None
) -> TensorCoreUse | None:
    """What the name tells, by the first sign that does; None without any.

    FlashAttention exists for matrix instructions alone.
    Source: Dao-AILab/flash-attention, csrc/flash_attn/src/kernel_traits.h (`MMA_Atom`).
    """
    used, eligible = TensorCoreUse.USED, TensorCoreUse.ELIGIBLE
    if _NARROW.search(kernel.name):
        return TensorCoreUse.NOT_APPLICABLE
    if kernel.tensor_core is not None:  # what the grammar of the name says
        return used if kernel.tensor_core else eligible
    if (found := _memory_efficient(kernel, data_type)) is not None:
        return found
    if kernel.family == "attention_flash":
        return used
    if kernel.variant == "template":
        # Types of CUTLASS that an instance of its templates is made of.
        # Source: NVIDIA/cutlass, include/cutlass/gemm/warp (`MmaTensorOp`, `MmaSimt`), include/cute/arch.
        if _MATRIX_TYPES.search(kernel.name):
            return used
        if "MmaSimt" in kernel.name or "OpClassSimt" in kernel.name:
            return eligible
    has_instruction = kernel.library == "tensile" and kernel.mma_shape is not None
    if has_instruction or (kernel.library == "triton" and data_type in _DOT_TYPES):
        return used
    return eligible if _CUDA_CORE_FUNCTIONS.search(kernel.function or kernel.name) else None


def _memory_efficient(kernel: DecodedKernel, data_type: DataType | None) -> TensorCoreUse | None:
    """Kernels of memory-efficient attention, whose source says what each architecture and type runs on.

    Source: pytorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h
    (`DefaultGemmType`).
    """
    architecture = (kernel.architecture or "").removeprefix("sm")
    operand = operand_type(kernel) or data_type
    if kernel.family != "attention_mem_efficient" or not architecture.isdecimal() or operand is None:
        return None
    least = {DataType.FP32: 80, DataType.TF32: 80, DataType.FP16: 70}.get(operand, 75)
    return TensorCoreUse.USED if int(architecture) >= least else TensorCoreUse.ELIGIBLE
