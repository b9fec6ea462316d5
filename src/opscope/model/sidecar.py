"""The sidecar: one small JSON file beside a trace that says how the trace was made.

The trace stays an ordinary Kineto file; everything opscope knows beyond it is here. The sidecar of
`trace.json` (also `.json.gz`, `.json.zst`) is `trace.opscope.json` in the same folder; a name without such an
ending gets `.opscope.json` appended. Sources that torch.compile generated lie beside it, in the folder
`trace.kernels`, and recordings of captures of CUDA graphs in `trace.graphs`. Written whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from opscope.errors import CaptureError, InputError
from opscope.model.files import UNREADABLE_JSON, replacing
from opscope.model.origin import Gap, OperatorRegistration, RecordedKernel, RecordedSource
from opscope.text_enum import TextEnum

SIDECAR_SCHEMA_VERSION = 1

SIZE_LIMIT = "max_trace_size"
"""`ended_by` of a recording that had grown too large."""

# What a file may claim is what the tables hold: integers of 64 bits.
_LARGEST = (1 << 63) - 1
_Integer = Annotated[int, msgspec.Meta(ge=-_LARGEST - 1, le=_LARGEST)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]

_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst")


class RecordedSchedule(msgspec.Struct, frozen=True):
    """The schedule asked for, and which of its cycles (from 0) the trace holds."""

    wait: _Integer
    warmup: _Integer
    active: _Integer
    repeat: _Integer
    cycle: _Integer
    merged: _Integer = 1  # steps of the program in each one: more where they come in cycles


class RecordedSettings(msgspec.Struct, frozen=True):
    """What was recorded, after `with_modules` turned stacks on, and by which of torch's profilers."""

    record_shapes: bool
    with_stack: bool
    with_modules: bool
    profile_memory: bool
    activities: tuple[str, ...]
    engine: str = "profiler"


class RecordedRegion(msgspec.Struct, frozen=True):
    """A stretch of the window in which some of the activities were not recorded."""

    start_ns: _Integer  # Just before they were switched off, in nanoseconds since the Unix epoch
    end_ns: _Integer  # Just after they were switched on again; the switching itself is inside
    off: tuple[str, ...]  # The activities, a part of `RecordedSettings.activities`
    step: _Integer  # Number of the `ProfilerStep` it began in


class RecordedModule(msgspec.Struct, frozen=True):
    """One nn.Module that another one's call called."""

    parent: str  # The calling module as the trace names it, e.g. `BertEncoder_0`
    child: str  # The called one, e.g. `BertLayer_3`
    name: str  # Attribute path from the first to the second, e.g. `layer.3`


class RecordedStructure(msgspec.Struct, frozen=True):
    """What the program knew of its own Python frames."""

    # Source files of the program, as the trace names them; every other file of the trace is a library's
    files: tuple[str, ...] = ()
    modules: tuple[RecordedModule, ...] = ()  # Attribute names of modules
    origin_ns: _Integer = 0  # What to add to `call_starts_ns` for nanoseconds since the Unix epoch
    # Starts of the Python calls that the program's own code made, ascending. Two of them that started in the
    # same nanosecond are left out
    call_starts_ns: tuple[_Integer, ...] = ()
    call_lines: tuple[_Integer, ...] = ()  # The line of its caller each was made from


class GraphNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One kernel, copy or set of a CUDA graph, as the driver tells it when the graph has been captured."""

    kind: str  # `kernel`, `memcpy` or `memset`
    name: str | None = None  # Of the kernel, mangled; None if the driver tells none
    # The node's id in its graph, which replayed activities carry in the lower half of theirs
    number: _Integer | None = None
    grid: tuple[_Integer, _Integer, _Integer] | None = None  # Blocks of the grid
    block: tuple[_Integer, _Integer, _Integer] | None = None  # Threads of a block


class RecordedGraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """One CUDA graph captured by the program before or while it was recorded."""

    # Kineto trace of the capture, relative to the sidecar; None if the trace itself holds it
    file: str | None = None
    # Its kernels, copies and sets in their order; None if the driver did not tell them
    nodes: tuple[GraphNode, ...] | None = None


class StepKind(TextEnum):
    """What the time of an unrecorded step runs from and to."""

    PERIOD = "period"  # from one step's start to the next one's
    CALL = "call"  # from a call's start to its return; the time between calls is not in it
    ALONE = "alone"  # a period at whose start the device had nothing left to do: the host by itself


class StepPlace(TextEnum):
    """When an unrecorded step ran."""

    BEFORE = "before"  # before a profiler was attached for the first time
    AFTER = "after"  # when one had been attached, and was detached again


class UnrecordedStep(msgspec.Struct, frozen=True):
    """One sample of the program's steps while no profiler was attached, not even one that only warmed up."""

    kind: StepKind  # What was timed
    place: StepPlace  # When it ran
    stretch: _Count  # Samples that followed each other without a break have the same number, from 0
    # Number of its first step, as `ProfilerStep` counts; in a loop of opscope's own, of the call
    step: _Count
    step_count: _Positive  # Steps that it covers: several where timing each would have cost too much
    host_ns: _Count  # Of all of them, by the host's clock
    # Of all of them, between two events on the current stream; None without a GPU
    device_ns: _Count | None = None


class RepeatedSince(TextEnum):
    """What had done before what an operator did."""

    STEP = "step"  # the step before, and all of it
    CALL = "call"  # another operator of the same step
    FORWARD = "forward"  # the forward pass, whose results activation checkpointing had not kept


# Operators by number: those of the first thread in their order, then those of the next one. Each stretch
# from its first to behind its last.
_Stretches = tuple[tuple[_Count, _Count], ...]


class RepeatedWork(msgspec.Struct, frozen=True):
    """Operators of a watched step that gave what was there already."""

    since: RepeatedSince
    line: str | None  # of the program, from which they were called: `file:line function`; None for `forward`
    operators: _Stretches
    text: str | None = None  # what the line says, where it is a whole statement
    is_from_host: bool = False  # whether they take what Python has made on the host, the same each time


class UnusedWork(msgspec.Struct, frozen=True):
    """Operators of a watched step whose results nothing read, in that step or after it."""

    line: str | None  # of the program, from which they were called; None for those of the backward pass
    operators: _Stretches
    text: str | None  # what the line says, where it is a whole statement
    is_whole: bool  # whether that is (almost) all that the line does
    is_of_weights: bool = False  # whether it is what convolutions' backward passes work out for weights alone
    is_checked: bool = False  # of older sidecars: whether Python waited for truth values that came of it


class PaddedInput(msgspec.Struct, frozen=True):
    """Inputs of one size, which two watched steps copied from the host, rows filled up to one length."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]
    columns: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)]
    longest: _Count  # columns that the longest row of both steps needs; all where their sizes differ
    mean: Annotated[float, msgspec.Meta(ge=0)]  # columns that a row needs
    filler: float  # what fills up the rest
    is_left: bool  # whether rows begin with it, rather than end
    lines: tuple[str, ...]  # of the program, that copy them
    operators: _Stretches  # that work on tensors of this size


class PythonWork(msgspec.Struct, frozen=True):
    """Where Python ran for long in a watched step: up to the call of an operator, from the one before."""

    operator: _Count  # its number
    line: str  # of the program, that called it: `file:line function`
    duration_ns: _Count


class RecordedRounds(msgspec.Struct, frozen=True):
    """Rounds that do the same, of which none needs the results of another."""

    line: str  # of the loop, or of the function's first call of the module
    module: str | None  # the class of the module that is called each time; None where it is a loop
    rounds: _Stretches  # a stretch each
    is_ragged: bool  # whether sizes differ from round to round
    has_weights: bool  # whether each has parameters of its own
    is_selected: bool = False  # whether each works on where the same tensor equals a number of its own
    has_backward: bool = False  # whether a backward pass follows each


class ProgramPart(msgspec.Struct, frozen=True):
    """Operators of a watched step that one function of the program calls, or one kind of module."""

    name: str  # the function with file and line, or the class of the outermost module
    is_module: bool
    operators: _Stretches


class ProgramLine(msgspec.Struct, frozen=True):
    """A line of the program from which a watched step called operators, itself or through functions."""

    line: str  # `file:line function`
    caller: Annotated[int, msgspec.Meta(ge=-1, le=_LARGEST)]  # the line that called its function; -1 for none
    times: _Count  # that loops around it came to it
    operators: _Stretches  # that it called itself


class ThreadOperators(msgspec.Struct, frozen=True):
    """The operators that one thread called in a step, in their order, below those that only call others."""

    thread_id: _Integer  # as the operating system numbers it
    names: tuple[str, ...]
    order: str  # numbers of `names`, separated by blanks


class GivenValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a tensor's values are spread; of integers all of it, of others how many are 0."""

    zeros: float = 0.0  # of all elements; of truth values, those that are false
    empty: float = 0.0  # of all rows, those that hold nothing but 0
    negative: float = 0.0  # of all integers
    low: int | None = None
    high: int | None = None
    distinct: int = 0
    is_sorted: bool = False
    every: tuple[int, ...] | None = None  # in their order, where they are few


class GivenTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that a call was given."""

    shape: tuple[int, ...]
    dtype: str  # as torch names it
    strides: tuple[int, ...] | None = None
    alignment: int = 256  # of its address, in bytes: the largest power of 2 up to this
    memory: int | None = None  # a number for memory that several tensors of the call lie in
    offset: int = 0  # in that memory, in elements
    values: GivenValues | None = None  # None where nobody looked
    kind: str | None = None  # the class or the layout of one that is no plain strided tensor
    requires_grad: bool = False


# A text is what Python writes for a number, text or None; None stands for what it cannot write.
GivenArgument = GivenTensor | tuple[GivenTensor | None, ...] | str | None


class GivenCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What calls of a watched step were given: of an operator, or of a Triton kernel that has a grid."""

    name: str
    arguments: dict[str, GivenArgument]  # by their names, in their order
    overload: str = ""
    count: int = 0  # of such calls
    grid: tuple[int, ...] | None = None
    source: str | None = None  # of the kernel; None where it needs what cannot be written down


class RecordedDataflow(msgspec.Struct, frozen=True):
    """What two steps before the recording showed of how their operators hang together."""

    threads: tuple[ThreadOperators, ...]
    repeated: tuple[RepeatedWork, ...] = ()
    rounds: tuple[RecordedRounds, ...] = ()
    unused: tuple[UnusedWork, ...] = ()
    padded: tuple[PaddedInput, ...] = ()
    python: tuple[PythonWork, ...] = ()
    parts: tuple[ProgramPart, ...] = ()
    lines: tuple[ProgramLine, ...] = ()  # each after the one that called its function
    calls: str = "[]"  # JSON of `GivenCall`s, in one line for they are many


class Sidecar(msgspec.Struct, frozen=True):
    trace: str  # File name of the trace, without folders
    created: str  # When the recording ended, ISO 8601 in UTC
    environment: Environment  # Versions and devices
    schedule: RecordedSchedule  # What was asked for
    settings: RecordedSettings  # What was recorded
    # Whole steps in the trace. A partial trace has one more `ProfilerStep`: the one it was left in
    steps: _Integer
    partial: bool  # The program ended before the window's last step
    clean_window: bool  # The device was idle when the recording started and again when it stopped
    # Host time of each whole step, with the profiler on. Steps are not synchronized, so one step's device
    # work may finish in a later one; the last one waits for it all, so the sum is exact
    wall_time_ns_per_step: tuple[_Integer, ...]
    workload: dict[str, Any] | None = None  # The recorded program's description, or None
    schema_version: _Integer = SIDECAR_SCHEMA_VERSION  # Of this file
    # Every kernel name of the trace, and the shared library it comes from
    kernels: tuple[RecordedKernel, ...] = ()
    # Source code of the kernels that the process itself compiled
    kernel_sources: tuple[RecordedSource, ...] = ()
    # Operators of the trace that are not PyTorch's own, or whose code was replaced
    registrations: tuple[OperatorRegistration, ...] = ()
    gaps: tuple[Gap, ...] = ()  # What of these could not be collected
    # Where less than `settings.activities` was recorded, in order of time
    regions: tuple[RecordedRegion, ...] = ()
    # Class of the exception that ended the program inside the window, `SIZE_LIMIT` if the recording had grown
    # too large, or None
    ended_by: str | None = None
    # The program behind the recorded Python frames; None without stacks
    structure: RecordedStructure | None = None
    # Steps of the same program without a profiler, in order; its warm-up is among them
    unrecorded_steps: tuple[UnrecordedStep, ...] = ()
    graphs: tuple[RecordedGraph, ...] = ()  # CUDA graphs captured so far, in the order of their captures
    rank: _Integer | None = None  # Of this process in its job, as its launcher set it; None outside of one
    world_size: _Integer | None = None  # Processes of the job
    dataflow: RecordedDataflow | None = None  # None where no two steps could be watched


class _Version(msgspec.Struct):
    schema_version: _Integer


def sidecar_path(trace_path: str | os.PathLike[str]) -> Path:
    return _beside(trace_path, ".opscope.json")


def kernels_folder(trace_path: str | os.PathLike[str]) -> Path:
    """Where copies of the generated sources of a trace's kernels lie."""
    return _beside(trace_path, ".kernels")


def graphs_folder(trace_path: str | os.PathLike[str]) -> Path:
    """Where recordings of the captures of a trace's CUDA graphs lie."""
    return _beside(trace_path, ".graphs")


def _beside(trace_path: str | os.PathLike[str], ending: str) -> Path:
    path = Path(trace_path)
    for suffix in _TRACE_SUFFIXES:
        if path.name.endswith(suffix):
            return path.with_name(f"{path.name.removesuffix(suffix)}{ending}")
    return path.with_name(f"{path.name}{ending}")


def write_sidecar(path: str | os.PathLike[str], sidecar: Sidecar) -> None:
    """Write a sidecar; the file appears, or is replaced, only when it is whole."""
    with replacing(path, "the sidecar", error=CaptureError) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(sidecar), indent=2) + b"\n")


def read_sidecar(path: str | os.PathLike[str]) -> Sidecar:
    """The sidecar in a file; an InputError if it is none, or written by a newer opscope."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the sidecar cannot be read ({error.strerror})", source=path) from error
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version > SIDECAR_SCHEMA_VERSION:
            raise InputError(
                f"a sidecar of schema version {version}; this opscope reads up to {SIDECAR_SCHEMA_VERSION}",
                source=path,
                hint="Upgrade opscope to read it",
            )
        return msgspec.json.decode(content, type=Sidecar)
    except UNREADABLE_JSON as error:
        raise InputError(f"not a sidecar of opscope ({error})", source=path) from error


# Launchers and the variables in which they tell a process its rank and their number.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def rank_of(variables: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Rank of a process and number of processes by its environment variables; None where they do not say."""
    for names in RANK_VARIABLES:
        rank, size = (int(text) if (text := variables.get(name, "")).isdecimal() else None for name in names)
        if rank is not None:
            return rank, size
    return None, None


class GpuInfo(msgspec.Struct, frozen=True, omit_defaults=False):
    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int


class Environment(msgspec.Struct, frozen=True, omit_defaults=False):
    """Versions and devices, none of which names a person or a path."""

    python: str
    platform: str
    opscope: str
    torch: str | None = None
    torch_git_version: str | None = None
    cuda_runtime: str | None = None
    cuda_driver: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    transformers: str | None = None
    cpu: str | None = None
    gpu: tuple[GpuInfo, ...] = ()
    # Part of ten seconds in which something waited for a CPU, by the kernel
    cpu_pressure_fraction: float | None = None
