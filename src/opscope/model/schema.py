"""Every table of a Session, declared as code: columns with type, unit, meaning and what they join.

The database is created from these declarations, `docs/reference/tables.md` is generated from them, and tests
hold every Session against them. Ids named `*_id` are unique in a Session (several ranks share one), except
where a column says "in its trace". Missing is NULL, never -1. Times are int64 nanoseconds on the clock of the
trace they come from; `traces.base_time_ns` added gives nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import msgspec

from opscope.text_enum import MeaningEnum

SCHEMA_VERSION = 1


class Attribution(MeaningEnum):
    """How a device activity was tied to an operator, or why it was not. A closed set."""

    EXTERNAL_ID = "external_id", "the launch call (or the activity itself) carries the operator's external id"
    CORRELATION = "correlation", "the launch call lies inside the operator on its thread"
    GRAPH = "graph", "launched by a CUDA graph replay whose launch call belongs to the operator"
    GRAPH_NODE = "graph_node", "replayed by a CUDA graph; its node was captured inside the operator"
    GRAPH_SEQUENCE = (
        "graph_sequence",
        "replayed by a CUDA graph whose kernels follow each other as those that the operator launched "
        "when it was captured, or eagerly",
    )
    BEFORE_WINDOW = (
        "before_window",
        "launched before the recording window opened, so its operator was not recorded",
    )
    NO_LAUNCH_RECORD = "no_launch_record", "its launch call is missing from the trace"
    OUTSIDE_OPERATOR = "outside_operator", "launched while no operator was open on the launching thread"
    NO_CORRELATION = "no_correlation", "the activity carries neither a correlation id nor an external id"


class ReplaySource(MeaningEnum):
    """What the operators of a replayed CUDA graph are known from. A closed set."""

    NOTED_CAPTURE = "noted_capture", "the recording noted the capture"
    CAPTURE_TRACE = "capture_trace", "a trace of the capture was given"
    CAPTURE_PHASE = "capture_phase", "the graph is captured in the trace itself"
    EAGER_PHASE = "eager_phase", "the same kernels run eagerly in the trace"


class ReplayEvidence(MeaningEnum):
    """How replayed activities were matched with captured launches, strongest first. A closed set."""

    NODE_IDS = "node_ids", "by the ids of the graph's nodes, and every kernel is the captured one"
    KERNEL_SEQUENCE = "kernel_sequence", "every kernel, in order, is the captured one"
    KERNEL_COUNTS = "kernel_counts", "each kernel runs as often as captured; those of one name by their order"
    LAUNCH_ORDER = (
        "launch_order",
        "as many launches of the same kinds; "
        "where the capture names no kernel, equal calls run equal kernels",
    )


class Column(msgspec.Struct, frozen=True):
    """One column: SQL type, meaning, unit of a number, and the column it joins."""

    name: str
    type: str
    doc: str
    unit: str | None = None
    joins: str | None = None


class Table(msgspec.Struct, frozen=True):
    """One table: what one row is, and its columns in storage order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(column.name for column in self.columns)

    def create_statement(self, *, temporary: bool = False) -> str:
        """The CREATE TABLE statement of this table; a temporary one hides the stored one of its name."""
        columns = ", ".join(f'"{column.name}" {column.type}' for column in self.columns)
        return f'CREATE {"TEMP " if temporary else ""}TABLE "{self.name}" ({columns})'


_TRACE_ID = Column("trace_id", "INTEGER", "Trace the row comes from", joins="traces.trace_id")
_THREAD_ID = Column("thread_id", "INTEGER", "Host thread", joins="threads.thread_id")
_START = Column("start_ns", "BIGINT", "Start", unit="ns")
_DURATION = Column("duration_ns", "BIGINT", "Duration", unit="ns")
_OPERATOR_ID = Column(
    "operator_id", "BIGINT", "Innermost operator it belongs to; NULL if none", joins="operators.operator_id"
)
_STEP = Column(
    "step", "INTEGER", "Number of the profiler step it belongs to; NULL outside steps", joins="steps.step"
)


def _location(prefix: str, doc: str) -> tuple[Column, ...]:
    return (
        Column(f"{prefix}file", "VARCHAR", f"{doc}: path in its repository, or of a user's own file"),
        Column(f"{prefix}line", "INTEGER", "Its first line"),
        Column(f"{prefix}end_line", "INTEGER", "Its last line"),
        Column(f"{prefix}url", "VARCHAR", "Permalink, at the commit at which the line is right"),
        Column(f"{prefix}file_grade", "VARCHAR", "Grade of the file"),
        Column(f"{prefix}line_grade", "VARCHAR", "Grade of the lines"),
    )


TABLES: tuple[Table, ...] = (
    Table(
        "traces",
        "One recorded trace: one process, one rank. A file holds one; an export of Nsight Systems may hold "
        "several.",
        (
            Column("trace_id", "INTEGER", "Identity, from 0 in the order of the source's file names"),
            Column("source", "VARCHAR", "Path or address it was read from"),
            Column(
                "format",
                "VARCHAR",
                "`kineto`, `kineto_legacy` (categories `Operator`, `Kernel`), or `nsys` (Nsight Systems)",
            ),
            Column("rank", "INTEGER", "Rank in the distributed job; NULL if the trace names none"),
            Column("world_size", "INTEGER", "Ranks of the distributed job"),
            Column("backend", "VARCHAR", "Distributed backend, e.g. `nccl`"),
            Column(
                "base_time_ns", "BIGINT", "What to add to a time for nanoseconds since the epoch", unit="ns"
            ),
            Column("window_start_ns", "BIGINT", "Opening of the recording window, where recorded", unit="ns"),
            Column("window_end_ns", "BIGINT", "End of the recording window, where recorded", unit="ns"),
            Column("cuda_runtime_version", "INTEGER", "As CUDA counts: 13000 is 13.0"),
            Column("cuda_driver_version", "INTEGER", "As CUDA counts: 13000 is 13.0"),
            Column("cupti_version", "INTEGER", "As CUPTI counts"),
            Column("size_bytes", "BIGINT", "Uncompressed size of what was read", unit="B"),
            Column("event_count", "BIGINT", "Events in its traceEvents array"),
            Column("properties", "JSON", "Its top-level keys besides traceEvents, as they stand"),
            Column("torch_version", "VARCHAR", "The recording torch; this and below by its sidecar"),
            Column("torch_git_version", "VARCHAR", "Commit that torch was built from"),
            Column("cuda_version", "VARCHAR", "CUDA that torch was built with, e.g. `13.0`"),
            Column("driver_version", "VARCHAR", "Newest CUDA the driver served, e.g. `13.0`"),
        ),
    ),
    Table(
        "threads",
        "One host thread (or named track) of a trace.",
        (
            Column("thread_id", "INTEGER", "Identity"),
            _TRACE_ID,
            Column("process", "VARCHAR", "`pid` as the trace writes it"),
            Column("native_thread", "VARCHAR", "`tid` as the trace writes it"),
            Column("process_name", "VARCHAR", "Name of the process, where recorded"),
            Column("name", "VARCHAR", "Name of the thread, where recorded"),
        ),
    ),
    Table(
        "devices",
        "One accelerator described by, or used in, a trace.",
        (
            _TRACE_ID,
            Column("device", "INTEGER", "Device ordinal in its process"),
            Column("name", "VARCHAR", "Product name; NULL where the trace has no deviceProperties"),
            Column("compute_major", "INTEGER", "Compute capability, major"),
            Column("compute_minor", "INTEGER", "Compute capability, minor"),
            Column("sm_count", "INTEGER", "Streaming multiprocessors (compute units on AMD)"),
            Column("memory_bytes", "BIGINT", "Device memory", unit="B"),
            Column("warp_size", "INTEGER", "Threads of a warp"),
            Column("max_threads_per_block", "INTEGER", "Most threads of a block"),
            Column("max_threads_per_sm", "INTEGER", "Most resident threads of an SM"),
            Column("registers_per_block", "INTEGER", "32-bit registers a block may use"),
            Column("registers_per_sm", "INTEGER", "32-bit registers of an SM"),
            Column(
                "shared_memory_per_block_bytes", "INTEGER", "Shared memory of a block by default", unit="B"
            ),
            Column("shared_memory_per_block_optin_bytes", "INTEGER", "The same, opted in", unit="B"),
            Column("shared_memory_per_sm_bytes", "INTEGER", "Shared memory of an SM", unit="B"),
            Column("activity_count", "BIGINT", "Device activities recorded on it"),
            Column("first_start_ns", "BIGINT", "Start of its first activity", unit="ns"),
            Column("last_end_ns", "BIGINT", "End of its last activity", unit="ns"),
            Column("span_ns", "BIGINT", "From first start to last end", unit="ns"),
            Column("busy_ns", "BIGINT", "Union of its activities' intervals", unit="ns"),
            Column("idle_ns", "BIGINT", "span minus busy", unit="ns"),
        ),
    ),
    Table(
        "operators",
        "One dispatcher call (`aten::mm`) or other recorded host range of category cpu_op; of an nsys export "
        "also an NVTX range that launched device work itself. "
        "Ids are preorder: the descendants of an operator are the ids up to its last_descendant_id.",
        (
            Column("operator_id", "BIGINT", "Identity; increases in preorder on each thread"),
            _TRACE_ID,
            _THREAD_ID,
            Column("name", "VARCHAR", "Name, e.g. `aten::mm`"),
            Column("overload", "VARCHAR", "Overload name, where the trace records it"),
            Column("external_id", "BIGINT", "Kineto's External id, unique in its trace"),
            _START,
            _DURATION,
            Column("parent_id", "BIGINT", "Enclosing operator on the thread", joins="operators.operator_id"),
            Column("depth", "INTEGER", "0 for an operator with no parent"),
            Column(
                "last_descendant_id",
                "BIGINT",
                "Largest operator_id in its subtree (its own if a leaf)",
                joins="operators.operator_id",
            ),
            Column("is_outermost", "BOOLEAN", "No ancestor has the same name, so totals count it once"),
            Column("sequence_number", "BIGINT", "Autograd sequence number"),
            Column(
                "forward_thread_id", "BIGINT", "Autograd's id of the forward thread; 0 on forward operators"
            ),
            Column("input_shapes", "JSON", "Shape of each argument, `[]` for one that is no tensor"),
            Column("input_types", "JSON", "Type of each argument"),
            Column("input_strides", "JSON", "Strides of each tensor argument"),
            Column("concrete_inputs", "JSON", "Values of scalar arguments"),
            Column("call_stack", "VARCHAR", "Python stack, in formats that keep it on the operator"),
            Column("module_hierarchy", "VARCHAR", "Module path, in formats that keep it on the operator"),
            Column(
                "module_id", "BIGINT", "Innermost nn.Module call open at its start", joins="modules.module_id"
            ),
            _STEP,
            Column("self_cpu_ns", "BIGINT", "Duration less that of its direct children", unit="ns"),
            Column("self_device_ns", "BIGINT", "Device time of its own activities", unit="ns"),
            Column("total_device_ns", "BIGINT", "Device time of its subtree on the thread", unit="ns"),
        ),
    ),
    Table(
        "runtime_calls",
        "One call of the CUDA runtime or driver API.",
        (
            Column("runtime_call_id", "BIGINT", "Identity"),
            _TRACE_ID,
            _THREAD_ID,
            Column("name", "VARCHAR", "Function, e.g. `cudaLaunchKernel`"),
            Column("api", "VARCHAR", "`runtime` or `driver`"),
            Column("correlation_id", "BIGINT", "Links to the activities it launched, in its trace"),
            Column("external_id", "BIGINT", "External id of the innermost range open when it was called"),
            _START,
            _DURATION,
            _OPERATOR_ID,
            _STEP,
        ),
    ),
    Table(
        "device_activities",
        "One kernel launch's execution, memory copy or memory set on a device.",
        (
            Column("activity_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("kind", "VARCHAR", "`kernel`, `memcpy` or `memset`"),
            Column("name_id", "INTEGER", "Its name", joins="kernel_names.name_id"),
            Column("correlation_id", "BIGINT", "Links to the call that launched it, in its trace"),
            Column("external_id", "BIGINT", "External id written on the activity itself"),
            Column("device", "INTEGER", "Device ordinal", joins="devices.device"),
            Column("stream", "BIGINT", "CUDA stream"),
            Column("context", "BIGINT", "CUDA context"),
            _START,
            _DURATION,
            Column("grid_x", "BIGINT", "Blocks of the grid, x"),
            Column("grid_y", "BIGINT", "Blocks of the grid, y"),
            Column("grid_z", "BIGINT", "Blocks of the grid, z"),
            Column("block_x", "INTEGER", "Threads of a block, x"),
            Column("block_y", "INTEGER", "Threads of a block, y"),
            Column("block_z", "INTEGER", "Threads of a block, z"),
            Column("registers_per_thread", "INTEGER", "32-bit registers of a thread"),
            Column("shared_memory_bytes", "BIGINT", "Shared memory of a block, static and dynamic", unit="B"),
            Column("blocks_per_sm", "DOUBLE", "Blocks of the grid divided by SMs, by the recorder"),
            Column("warps_per_sm", "DOUBLE", "Warps of the grid divided by SMs, by the recorder"),
            Column(
                "occupancy_estimate",
                "DOUBLE",
                "The recorder's estimated occupancy, 0–1; NULL where it writes 0, its word for unknown",
            ),
            Column("size_bytes", "BIGINT", "Bytes copied or set", unit="B"),
            Column("graph_id", "BIGINT", "CUDA graph it was replayed from, where recorded"),
            Column("graph_node_id", "BIGINT", "Node of that graph"),
            Column(
                "runtime_call_id",
                "BIGINT",
                "The call that launched it",
                joins="runtime_calls.runtime_call_id",
            ),
            _OPERATOR_ID,
            Column("attribution", "VARCHAR", "How it was tied to the operator, or why not (closed set)"),
            _STEP,
        ),
    ),
    Table(
        "graph_replays",
        "One replay of a CUDA graph (`cudaGraphLaunch`) with recorded activities, and how it was opened.",
        (
            _TRACE_ID,
            Column("correlation_id", "BIGINT", "Of the launch call and its activities, in its trace"),
            Column("graph", "INTEGER", "Number of the graph, from 1 in the order of first replays"),
            Column("activity_count", "INTEGER", "Activities of the replay"),
            Column("device_ns", "BIGINT", "Their device time", unit="ns"),
            Column(
                "source", "VARCHAR", "What its operators are known from (closed set); NULL if they are not"
            ),
            Column("evidence", "VARCHAR", "How it was matched (closed set); NULL if it was not"),
            Column("file", "VARCHAR", "Trace that tells them"),
            Column("reason", "VARCHAR", "Why its operators, or what of them, are unknown"),
        ),
    ),
    Table(
        "kernel_names",
        "One distinct name of a device activity.",
        (
            Column("name_id", "INTEGER", "Identity"),
            Column("name", "VARCHAR", "Name as recorded; kernels are demangled"),
            Column("kind", "VARCHAR", "`kernel`, `memcpy` or `memset`"),
        ),
    ),
    Table(
        "kernel_symbols",
        "One symbol of a kernel, in traces whose recorder keeps it (Nsight Systems).",
        (
            Column("name_id", "INTEGER", "The kernel's name", joins="kernel_names.name_id"),
            Column("mangled_name", "VARCHAR", "As the compiler mangled it; NULL if the recording lacks it"),
            Column("recorded_name", "VARCHAR", "As the recorder spells it, which is not how Kineto does"),
        ),
    ),
    Table(
        "kernel_origins",
        "One translation unit that holds a kernel, as the recording process read it from its own libraries.",
        (
            Column("name_id", "INTEGER", "The kernel's name", joins="kernel_names.name_id"),
            Column("library", "VARCHAR", "Shared library that registered the kernel, without folders"),
            Column("build_id", "VARCHAR", "Build id of the library"),
            Column("unit", "VARCHAR", "The unit's file name, e.g. `SoftMax.cu`; NULL if unknown"),
            Column("module_id", "VARCHAR", "Hash nvcc gave the unit; tells units of one name apart"),
            Column("source_path", "VARCHAR", "Path of the unit, where the binary says it"),
        ),
    ),
    Table(
        "operator_registrations",
        "One operator that is not PyTorch's own, or whose code was replaced, as the recording process "
        "had it.",
        (
            Column("name", "VARCHAR", "With namespace and overload, e.g. `mylib::scale`, `aten::mul.Tensor`"),
            Column("kind", "VARCHAR", "`custom_op`, `triton_op`, `library` (all in Python) or `cxx`"),
            Column("schema", "VARCHAR", "As the dispatcher prints it"),
            Column("definition", "VARCHAR", "Where the schema was registered, `FILE:LINE`"),
            Column("kernels", "JSON", "Place of the code in force by dispatch key, `FILE:LINE` or null"),
            Column("python_file", "VARCHAR", "File of the user's Python function"),
            Column("python_line", "INTEGER", "Its first line, decorators included"),
            Column("end_line", "INTEGER", "Its last line"),
            Column(
                "overrides", "JSON", "Place of the replaced code by dispatch key; operators of `aten` only"
            ),
        ),
    ),
    Table(
        "kernel_sources",
        "One source of a kernel that the recording process itself compiled: generated by torch.compile for "
        "one graph, a user's Triton kernel, or a CUDA extension's.",
        (
            Column("name_id", "INTEGER", "The kernel's name", joins="kernel_names.name_id"),
            Column("kind", "VARCHAR", "`inductor`, `triton` (a user's) or `cuda` (a user's)"),
            Column("evidence", "VARCHAR", "`launch` (a launch names it), `process`: by name"),
            Column("file", "VARCHAR", "Its file on the recording machine"),
            Column("line", "INTEGER", "Line of its `def` or `__global__`"),
            Column("end_line", "INTEGER", "Its last line"),
            Column("hash", "VARCHAR", "Hash of the generated source", joins="triton_launches.kernel_hash"),
            Column("copy", "VARCHAR", "Copy of the file, relative to the trace's folder"),
            Column("user_file", "VARCHAR", "File of the user's Triton kernel it was generated from"),
            Column("user_line", "INTEGER", "Its line there"),
            Column("heuristic", "VARCHAR", "Kind of the generated kernel, e.g. `persistent_reduction`"),
            Column("graph", "VARCHAR", "Compiled graph, e.g. `0_forward`"),
            Column("graph_key", "VARCHAR", "Cache key of that graph, which annotations name"),
            Column("original_aten", "VARCHAR[]", "ATen operators it computes"),
            Column("source_nodes", "VARCHAR[]", "Nodes of the program's graph it computes"),
            Column("modules", "VARCHAR[]", "Modules of the model whose code these nodes are of"),
            Column("post_grad_nodes", "VARCHAR[]", "Nodes of the lowered graph, with provenance tracking"),
            Column("stacks", "JSON", "Lines of the program it computes, with provenance tracking"),
            Column("meta", "JSON", "What the generated code states of itself, e.g. `num_load`"),
        ),
    ),
    Table(
        "kernel_provenance",
        "What is known of one distinct kernel name: fields read from the name, and where its source lies. "
        "Filled when first asked for. Grades: docs/accuracy.md.",
        (
            Column("name_id", "INTEGER", "The name", joins="kernel_names.name_id"),
            Column("category", "VARCHAR", "Kind of work, e.g. `matrix`"),
            Column("function", "VARCHAR", "Qualified name without template arguments"),
            Column("library", "VARCHAR", "Whose kernel it is, e.g. `aten`, `cublas`, `triton`"),
            Column("family", "VARCHAR", "Which algorithm, e.g. `elementwise`, `gemm`, `softmax`"),
            Column("architecture", "VARCHAR", "GPU architecture it was compiled for, e.g. `sm90`"),
            Column("tensor_core", "BOOLEAN", "It computes on tensor cores"),
            Column("fields", "JSON", "Every field read from the name, and template arguments by name"),
            Column("grades", "JSON", "Grade of each of those fields"),
            Column("units", "VARCHAR[]", "Translation units that hold it; one where it is certain"),
            Column("unit_grade", "VARCHAR", "Grade of the units"),
            Column("registered_by", "VARCHAR", "Shared library that registered it, where recorded"),
            *_location("", "Where its own code lies: the functor of a generic launcher, else the template"),
            *_location("template_", "The `__global__` function"),
        ),
    ),
    Table(
        "native_functions",
        "One native function (an overload) that operators of this Session reached. Filled when first "
        "asked for.",
        (
            Column("native_function_id", "INTEGER", "Identity"),
            Column("name", "VARCHAR", "Operator name, e.g. `aten::_softmax`"),
            Column("overload", "VARCHAR", "Overload, empty for the default; NULL where it is not certain"),
            Column(
                "kind",
                "VARCHAR",
                "`native`, `composite`, `generated`, `backward`, `custom`, `triton`, `range`",
            ),
            Column("category", "VARCHAR", "Kind of work"),
            Column("schema", "VARCHAR", "Its schema, as in native_functions.yaml"),
            Column("overload_grade", "VARCHAR", "Grade of the overload and of all facts of the yaml entry"),
            Column("structured_delegate", "VARCHAR", "Overload whose structured kernel serves it"),
            Column("dispatch_key", "VARCHAR", "Key that serves the recorded device, e.g. `CUDA`"),
            Column("cuda_function", "VARCHAR", "Function registered for that key"),
            Column("stub", "VARCHAR", "Dispatch stub through which the function reaches its device code"),
            Column("tags", "VARCHAR[]", "Tags of the yaml entry"),
            Column("yaml_line", "INTEGER", "Line in native_functions.yaml"),
            Column(
                "details",
                "JSON",
                "autogen, derivative, forward operator, candidates, launchers, registration",
            ),
            *_location("", "Where the function is defined"),
            *_location(
                "stub_",
                "Where the function it launches through is defined: the stub's, or one of a `.cu` file that "
                "it calls",
            ),
        ),
    ),
    Table(
        "operator_functions",
        "Which native function one kind of recorded call reached.",
        (
            Column("name", "VARCHAR", "As in operators.name"),
            Column("overload", "VARCHAR", "As in operators.overload"),
            Column("input_types", "JSON", "As in operators.input_types"),
            Column(
                "native_function_id", "INTEGER", "Its function", joins="native_functions.native_function_id"
            ),
            Column("calls", "BIGINT", "Operator calls"),
            Column("self_device_ns", "BIGINT", "Their own device time", unit="ns"),
        ),
    ),
    Table(
        "recognition",
        "Which torch release made the traces, and which tables answered. One row, once provenance was "
        "filled.",
        (
            Column("torch_version", "VARCHAR", "Release the kernels are looked up in; NULL if none fits"),
            Column("grade", "VARCHAR", "Grade of the release"),
            Column("hit_rates", "JSON", "Share of the candidate kernel names found in each release's table"),
            Column("reason", "VARCHAR", "How the release was found, or why not"),
            Column("candidate_kernels", "INTEGER", "Kernel names that could be torch's own"),
            Column("operator_table", "VARCHAR", "Release whose native_functions.yaml was used"),
            Column("operator_grade", "VARCHAR", "Grade of that table for these traces"),
            Column("source_indexes", "VARCHAR[]", "Releases whose source lines were used, best first"),
        ),
    ),
    Table(
        "annotations",
        "One user range: record_function, ProfilerStep, an NVTX range or mark, or its image on a device "
        "track.",
        (
            Column("annotation_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("side", "VARCHAR", "`host` or `device`"),
            Column("name", "VARCHAR", "Name"),
            Column("thread_id", "INTEGER", "Host thread; NULL on a device", joins="threads.thread_id"),
            Column("device", "INTEGER", "Device ordinal; NULL on the host"),
            Column("stream", "BIGINT", "CUDA stream; NULL on the host"),
            Column("external_id", "BIGINT", "Kineto's External id"),
            _START,
            _DURATION,
        ),
    ),
    Table(
        "steps",
        "One profiler step (annotation `ProfilerStep#N`) of a trace.",
        (
            _TRACE_ID,
            Column("step", "INTEGER", "N of ProfilerStep#N"),
            _START,
            _DURATION,
            _THREAD_ID,
            Column("device_ns", "BIGINT", "Device time of the activities launched in it", unit="ns"),
            Column("kernel_count", "BIGINT", "Kernels launched in it"),
        ),
    ),
    Table(
        "unrecorded_steps",
        "One sample of the program's steps without a profiler, by the sidecar; its warm-up is among them.",
        (
            _TRACE_ID,
            Column("sample", "INTEGER", "Number in the trace's sidecar, from 0"),
            Column(
                "kind",
                "VARCHAR",
                "`period`: from step start to step start; `call`: from call to return; `alone`: a period at "
                "whose start the device was idle",
            ),
            Column("place", "VARCHAR", "`before` a profiler was attached, or `after`"),
            Column("stretch", "INTEGER", "Samples that followed each other without a break share it"),
            Column("step", "INTEGER", "N of the first step or call in it"),
            Column("step_count", "INTEGER", "Steps that it covers"),
            Column("host_ns", "BIGINT", "Of all of them, by the host's clock", unit="ns"),
            Column("device_ns", "BIGINT", "Of all of them, between events on the stream", unit="ns"),
        ),
    ),
    Table(
        "frames",
        "One call of a Python function (recorded with stacks).",
        (
            Column("frame_id", "BIGINT", "Identity"),
            _TRACE_ID,
            _THREAD_ID,
            Column("name", "VARCHAR", "`file(line): function`, or `nn.Module: Linear_0`"),
            Column("python_id", "BIGINT", "Recorder's id, unique in its trace"),
            Column("parent_python_id", "BIGINT", "python_id of the caller"),
            Column(
                "module_id",
                "BIGINT",
                "The module, if the frame is a module's call",
                joins="modules.module_id",
            ),
            _START,
            _DURATION,
        ),
    ),
    Table(
        "modules",
        "One nn.Module instance whose calls were recorded.",
        (
            Column("module_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("python_module_id", "BIGINT", "Recorder's id of the instance"),
            Column("name", "VARCHAR", "Class and the recorder's instance count, e.g. `Linear_3`"),
            Column("class_name", "VARCHAR", "Class, e.g. `Linear`"),
            Column("call_count", "BIGINT", "Recorded calls"),
        ),
    ),
    Table(
        "memory_events",
        "One allocation (positive size) or release (negative size) seen by the allocator.",
        (
            Column("memory_event_id", "BIGINT", "Identity"),
            _TRACE_ID,
            _THREAD_ID,
            Column("time_ns", "BIGINT", "When", unit="ns"),
            Column("address", "UBIGINT", "Address"),
            Column("size_bytes", "BIGINT", "Change", unit="B"),
            Column("device_type", "INTEGER", "c10::DeviceType: 0 CPU, 1 CUDA"),
            Column("device", "INTEGER", "Device ordinal; NULL on the CPU"),
            Column("total_allocated_bytes", "BIGINT", "Allocated after the event", unit="B"),
            Column("total_reserved_bytes", "BIGINT", "Reserved by the allocator after the event", unit="B"),
            _OPERATOR_ID,
        ),
    ),
    Table(
        "set_aside",
        "One device record that cannot be right: in no other table, and in no figure but "
        "`summary.set_aside_ns`.",
        (
            _TRACE_ID,
            Column("kind", "VARCHAR", "`kernel`, `memcpy` or `memset`"),
            Column("name", "VARCHAR", "As recorded"),
            Column("correlation_id", "BIGINT", "As recorded"),
            Column("device", "INTEGER", "Device ordinal"),
            Column("stream", "BIGINT", "CUDA stream"),
            _START,
            _DURATION,
            Column(
                "reason",
                "VARCHAR",
                "`outside_recording` (far from all host events), `overruns_stream` (over its successors)",
            ),
        ),
    ),
    Table(
        "collectives",
        "One record of a collective or point-to-point operation, as the host call or the kernel carries it.",
        (
            Column("collective_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("side", "VARCHAR", "`host` (an operator) or `device` (a kernel)"),
            _OPERATOR_ID,
            Column("activity_id", "BIGINT", "The kernel", joins="device_activities.activity_id"),
            Column("name", "VARCHAR", "Collective, e.g. `allreduce`"),
            Column("data_type", "VARCHAR", "Element type as recorded"),
            Column("in_element_count", "BIGINT", "Elements read"),
            Column("out_element_count", "BIGINT", "Elements written"),
            Column("in_split_sizes", "VARCHAR", "Split sizes of the input as recorded"),
            Column("out_split_sizes", "VARCHAR", "Split sizes of the output as recorded"),
            Column("group_name", "VARCHAR", "Process group"),
            Column("group_description", "VARCHAR", "Its description"),
            Column("group_size", "INTEGER", "Ranks of the group"),
            Column("group_ranks", "VARCHAR", "The ranks as recorded"),
            Column("source_rank", "INTEGER", "Sender of a point-to-point operation"),
            Column("destination_rank", "INTEGER", "Receiver of a point-to-point operation"),
            Column("sequence", "BIGINT", "The group's own count of operations; equal on all ranks"),
        ),
    ),
    Table(
        "syncs",
        "One synchronization recorded on the device timeline.",
        (
            Column("sync_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("kind", "VARCHAR", "As recorded, e.g. `Stream Sync`, `Event Sync`"),
            Column("device", "INTEGER", "Device ordinal"),
            Column("stream", "BIGINT", "CUDA stream"),
            Column("correlation_id", "BIGINT", "Links to the runtime call, in its trace"),
            Column("external_id", "BIGINT", "External id written on the record"),
            Column("wait_on_stream", "BIGINT", "Stream waited for"),
            Column("wait_on_event_id", "BIGINT", "CUDA event waited for"),
            Column("wait_on_event_correlation_id", "BIGINT", "Correlation id of that event's record call"),
            _START,
            _DURATION,
        ),
    ),
    Table(
        "autograd_links",
        "One link from a forward operator to the backward operator that differentiates it.",
        (
            Column("link_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("forward_operator_id", "BIGINT", "Forward operator", joins="operators.operator_id"),
            Column("backward_operator_id", "BIGINT", "Backward operator", joins="operators.operator_id"),
            Column("evidence", "VARCHAR", "`flow` (recorded arrow) or `sequence_number`"),
        ),
    ),
    Table(
        "triton_launches",
        "What torch.compile wrote on one operator that launches a Triton kernel.",
        (
            _OPERATOR_ID,
            _TRACE_ID,
            Column("kernel_name", "VARCHAR", "Name of the kernel, as inductor or else the operator has it"),
            Column("kernel_backend", "VARCHAR", "e.g. `triton`"),
            Column("kernel_file", "VARCHAR", "Generated source file"),
            Column("kernel_hash", "VARCHAR", "Hash of the generated source"),
            Column("kernel_kwargs", "VARCHAR", "Compile-time arguments as recorded"),
            Column("grid", "VARCHAR", "Launch grid as recorded"),
            Column("stream", "BIGINT", "Handle of the CUDA stream, 0 for the default one"),
            Column("num_warps", "INTEGER", "Warps of a block"),
            Column("num_stages", "INTEGER", "Pipeline stages"),
            Column("kernel_flop", "DOUBLE", "Floating-point operations, by inductor", unit="FLOP"),
            Column("kernel_num_gb", "DOUBLE", "Bytes moved by inductor's count, in 1e9 bytes", unit="GB"),
        ),
    ),
    Table(
        "call_costs",
        "One distinct call: calls of one operator with the same recorded arguments, or launches of no "
        "operator that are alike, with what each call must do at least. Their device time is that of their "
        "own activities, so the rows share all device time out. Filled when first asked for.",
        (
            Column("call_id", "INTEGER", "Identity, from 0"),
            Column("name", "VARCHAR", "Operator; of launches of no operator, the activity's name"),
            Column("overload", "VARCHAR", "As in operators.overload"),
            Column("input_shapes", "JSON", "As in operators.input_shapes"),
            Column("input_types", "JSON", "As in operators.input_types"),
            Column("input_strides", "JSON", "As in operators.input_strides"),
            Column("concrete_inputs", "JSON", "As in operators.concrete_inputs"),
            Column("attribution", "VARCHAR", "NULL for calls of an operator; else that of the launches"),
            Column("calls", "BIGINT", "Calls; of launches of no operator, launches"),
            Column("self_device_ns", "BIGINT", "Device time of their own activities", unit="ns"),
            Column("flop_count", "BIGINT", "Floating-point operations of one call", unit="FLOP"),
            Column("flop_source", "VARCHAR", "How they are counted (closed set)"),
            Column("read_bytes", "BIGINT", "Distinct bytes one call reads from device memory", unit="B"),
            Column("written_bytes", "BIGINT", "Distinct bytes one call writes to device memory", unit="B"),
            Column("data_type", "VARCHAR", "Type whose peak limits its operations, e.g. `bf16`"),
            Column("evidence", "VARCHAR", "How the bytes are known (closed set); NULL where unknown"),
            Column("reason", "VARCHAR", "Why something is unknown"),
        ),
    ),
    Table(
        "activity_costs",
        "One device activity and the distinct call it belongs to; every activity has one. Filled when first "
        "asked for.",
        (
            Column("activity_id", "BIGINT", "The activity", joins="device_activities.activity_id"),
            Column("call_id", "INTEGER", "Its distinct call", joins="call_costs.call_id"),
        ),
    ),
    Table(
        "overheads",
        "One interval the recorder spent on itself.",
        (
            Column("overhead_id", "BIGINT", "Identity"),
            _TRACE_ID,
            Column("name", "VARCHAR", "What, e.g. `Activity Buffer Request`"),
            Column("thread_id", "INTEGER", "Track it was recorded on", joins="threads.thread_id"),
            _START,
            _DURATION,
        ),
    ),
    Table(
        "findings",
        "One fact about the data that qualifies the figures.",
        (
            Column("code", "VARCHAR", "Stable identifier, e.g. `trace.truncated`"),
            Column("severity", "VARCHAR", "`info`, `warning` or `error`"),
            Column("message", "VARCHAR", "One sentence"),
            Column("suggestion", "VARCHAR", "What to do"),
            Column("trace_id", "INTEGER", "Trace it concerns; NULL for all", joins="traces.trace_id"),
            Column("evidence", "JSON", "The numbers it rests on"),
        ),
    ),
    Table(
        "metadata",
        "One key of the Session itself.",
        (
            Column("key", "VARCHAR", "`schema_version`, `opscope_version`, `sidecar`, …"),
            Column("value", "VARCHAR", "Its value"),
        ),
    ),
)

_BY_NAME = {declared.name: declared for declared in TABLES}


def table(name: str) -> Table:
    """The declared table of that name.

    Raises:
        KeyError: No table of that name is declared.
    """
    return _BY_NAME[name]
