-- Every table of a Session: what one row is, and of each column its type, meaning, [unit] and -> the column it joins.
-- Read by schema.py. Ids named `*_id` are unique in a Session (several ranks share one), except where a column says "in its
-- trace". Missing is NULL, never -1. Times are int64 nanoseconds on the clock of the trace they come from;
-- `traces.base_time_ns` added gives nanoseconds since the Unix epoch.

-- One recorded trace: one process, one rank. A file holds one; an export of Nsight Systems may hold several.
CREATE TABLE traces (
    trace_id INTEGER, -- Identity, from 0 in the order of the source's file names
    source VARCHAR, -- Path or address it was read from
    format VARCHAR, -- `kineto`, `kineto_legacy` (categories `Operator`, `Kernel`), or `nsys` (Nsight Systems)
    rank INTEGER, -- Rank in the distributed job; NULL if the trace names none
    world_size INTEGER, -- Ranks of the distributed job
    backend VARCHAR, -- Distributed backend, e.g. `nccl`
    base_time_ns BIGINT, -- Add to a time for nanoseconds since the epoch [ns]
    window_start_ns BIGINT, -- Opening of the recording window, where recorded [ns]
    window_end_ns BIGINT, -- End of the recording window, where recorded [ns]
    cuda_runtime_version INTEGER, -- As CUDA counts: 13000 is 13.0
    cuda_driver_version INTEGER, -- As CUDA counts: 13000 is 13.0
    cupti_version INTEGER, -- As CUPTI counts
    size_bytes BIGINT, -- Uncompressed size of the file [B]
    event_count BIGINT, -- Events in its traceEvents array
    properties JSON, -- Its top-level keys except traceEvents, unchanged
    torch_version VARCHAR, -- The recording torch; this and the following come from the sidecar
    torch_git_version VARCHAR, -- Commit that torch was built from
    cuda_version VARCHAR, -- CUDA that torch was built with, e.g. `13.0`
    driver_version VARCHAR -- Newest CUDA that the driver supported, e.g. `13.0`
);

-- One host thread (or named track) of a trace.
CREATE TABLE threads (
    thread_id INTEGER, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    process VARCHAR, -- `pid` as the trace writes it
    native_thread VARCHAR, -- `tid` as the trace writes it
    process_name VARCHAR, -- Name of the process, where recorded
    name VARCHAR -- Name of the thread, where recorded
);

-- One accelerator described by, or used in, a trace.
CREATE TABLE devices (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    device INTEGER, -- Device ordinal in its process
    name VARCHAR, -- Product name; NULL where the trace has no deviceProperties
    compute_major INTEGER, -- Compute capability, major
    compute_minor INTEGER, -- Compute capability, minor
    sm_count INTEGER, -- Streaming multiprocessors (compute units on AMD)
    memory_bytes BIGINT, -- Device memory [B]
    warp_size INTEGER, -- Threads per warp
    max_threads_per_block INTEGER, -- Maximum threads per block
    max_threads_per_sm INTEGER, -- Maximum resident threads per SM
    registers_per_block INTEGER, -- 32-bit registers a block may use
    registers_per_sm INTEGER, -- 32-bit registers of an SM
    shared_memory_per_block_bytes INTEGER, -- Default maximum shared memory of a block [B]
    shared_memory_per_block_optin_bytes INTEGER, -- Maximum after opting in [B]
    shared_memory_per_sm_bytes INTEGER, -- Shared memory of an SM [B]
    activity_count BIGINT, -- Device activities recorded on it
    first_start_ns BIGINT, -- Start of its first activity [ns]
    last_end_ns BIGINT, -- End of its last activity [ns]
    span_ns BIGINT, -- From first start to last end [ns]
    busy_ns BIGINT, -- Union of its activities' intervals [ns]
    idle_ns BIGINT -- span minus busy [ns]
);

-- One dispatcher call (`aten::mm`) or other recorded host range of category cpu_op; in an nsys export also an NVTX range that
-- launched device work itself. Ids are preorder: the descendants of an operator are the ids up to its last_descendant_id.
CREATE TABLE operators (
    operator_id BIGINT, -- Identity; increases in preorder on each thread
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    thread_id INTEGER, -- Host thread -> threads.thread_id
    name VARCHAR, -- Name, e.g. `aten::mm`
    overload VARCHAR, -- Overload name, where the trace records it
    external_id BIGINT, -- Kineto's External id, unique in its trace
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT, -- Duration [ns]
    parent_id BIGINT, -- Enclosing operator on the thread -> operators.operator_id
    depth INTEGER, -- 0 for an operator with no parent
    last_descendant_id BIGINT, -- Largest operator_id in its subtree (its own if a leaf) -> operators.operator_id
    is_outermost BOOLEAN, -- No ancestor has the same name; totals count only these
    sequence_number BIGINT, -- Autograd sequence number
    forward_thread_id BIGINT, -- Autograd's id of the forward thread; 0 on forward operators
    input_shapes JSON, -- Shape of each argument, `[]` if it is not a tensor
    input_types JSON, -- Type of each argument
    input_strides JSON, -- Strides of each tensor argument
    concrete_inputs JSON, -- Values of scalar arguments
    call_stack VARCHAR, -- Python stack, in formats that keep it on the operator
    module_hierarchy VARCHAR, -- Module path, in formats that keep it on the operator
    module_id BIGINT, -- Innermost nn.Module call open at its start -> modules.module_id
    step INTEGER, -- Number of the profiler step it belongs to; NULL outside steps -> steps.step
    self_cpu_ns BIGINT, -- Duration minus that of its direct children [ns]
    self_device_ns BIGINT, -- Device time of its own activities [ns]
    total_device_ns BIGINT -- Device time of its subtree on the thread [ns]
);

-- One call of the CUDA runtime or driver API.
CREATE TABLE runtime_calls (
    runtime_call_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    thread_id INTEGER, -- Host thread -> threads.thread_id
    name VARCHAR, -- Function, e.g. `cudaLaunchKernel`
    api VARCHAR, -- `runtime` or `driver`
    correlation_id BIGINT, -- Links to the activities it launched, in its trace
    external_id BIGINT, -- External id of the innermost range open when it was called
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT, -- Duration [ns]
    operator_id BIGINT, -- Innermost operator it belongs to; NULL if none -> operators.operator_id
    step INTEGER -- Number of the profiler step it belongs to; NULL outside steps -> steps.step
);

-- One kernel launch's execution, memory copy or memory set on a device.
CREATE TABLE device_activities (
    activity_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    kind VARCHAR, -- `kernel`, `memcpy` or `memset`
    name_id INTEGER, -- Its name -> kernel_names.name_id
    correlation_id BIGINT, -- Links to the call that launched it, in its trace
    external_id BIGINT, -- External id written on the activity itself
    device INTEGER, -- Device ordinal -> devices.device
    stream BIGINT, -- CUDA stream
    context BIGINT, -- CUDA context
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT, -- Duration [ns]
    grid_x BIGINT, -- Blocks of the grid, x
    grid_y BIGINT, -- Blocks of the grid, y
    grid_z BIGINT, -- Blocks of the grid, z
    block_x INTEGER, -- Threads of a block, x
    block_y INTEGER, -- Threads of a block, y
    block_z INTEGER, -- Threads of a block, z
    registers_per_thread INTEGER, -- 32-bit registers of a thread
    shared_memory_bytes BIGINT, -- Shared memory of a block, static and dynamic [B]
    blocks_per_sm DOUBLE, -- Blocks of the grid divided by SMs, from the profiler
    warps_per_sm DOUBLE, -- Warps of the grid divided by SMs, from the profiler
    occupancy_estimate DOUBLE, -- The profiler's estimated occupancy, 0–1; NULL if it wrote 0, which means unknown
    size_bytes BIGINT, -- Bytes copied or set [B]
    graph_id BIGINT, -- CUDA graph it was replayed from, where recorded
    graph_node_id BIGINT, -- Node of that graph
    runtime_call_id BIGINT, -- The call that launched it -> runtime_calls.runtime_call_id
    operator_id BIGINT, -- Innermost operator it belongs to; NULL if none -> operators.operator_id
    attribution VARCHAR, -- How it was attributed, or why not (closed set)
    step INTEGER -- Number of the profiler step it belongs to; NULL outside steps -> steps.step
);

-- One replay of a CUDA graph (`cudaGraphLaunch`) with recorded activities, and how it was matched with a capture.
CREATE TABLE graph_replays (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    correlation_id BIGINT, -- Of the launch call and its activities, in its trace
    graph INTEGER, -- Number of the graph, from 1 in the order of first replays
    activity_count INTEGER, -- Activities of the replay
    device_ns BIGINT, -- Their device time [ns]
    source VARCHAR, -- Where its operators come from (closed set); NULL if unknown
    evidence VARCHAR, -- How it was matched (closed set); NULL if it was not
    file VARCHAR, -- Trace with the capture
    reason VARCHAR -- Why its operators, or parts of them, are unknown
);

-- One distinct name of a device activity.
CREATE TABLE kernel_names (
    name_id INTEGER, -- Identity
    name VARCHAR, -- Name as recorded; kernels are demangled
    kind VARCHAR -- `kernel`, `memcpy` or `memset`
);

-- One symbol of a kernel, in traces whose profiler keeps it (Nsight Systems).
CREATE TABLE kernel_symbols (
    name_id INTEGER, -- The kernel's name -> kernel_names.name_id
    mangled_name VARCHAR, -- Mangled name; NULL if not recorded
    recorded_name VARCHAR -- As the profiler spells it, which differs from Kineto
);

-- One translation unit that holds a kernel, as the recording process read it from its own libraries.
CREATE TABLE kernel_origins (
    name_id INTEGER, -- The kernel's name -> kernel_names.name_id
    library VARCHAR, -- Shared library that registered the kernel, without folders
    build_id VARCHAR, -- Build id of the library
    unit VARCHAR, -- The unit's file name, e.g. `SoftMax.cu`; NULL if unknown
    module_id VARCHAR, -- nvcc's hash of the unit; distinguishes units of the same name
    source_path VARCHAR -- Path of the unit, if the binary contains it
);

-- One operator that is not PyTorch's own, or whose code was replaced, as the recording process had it.
CREATE TABLE operator_registrations (
    name VARCHAR, -- With namespace and overload, e.g. `mylib::scale`, `aten::mul.Tensor`
    kind VARCHAR, -- `custom_op`, `triton_op`, `library` (all in Python) or `cxx`
    schema VARCHAR, -- As the dispatcher prints it
    definition VARCHAR, -- Where the schema was registered, `FILE:LINE`
    kernels JSON, -- Place of the code in force by dispatch key, `FILE:LINE` or null
    python_file VARCHAR, -- File of the user's Python function
    python_line INTEGER, -- Its first line, decorators included
    end_line INTEGER, -- Its last line
    overrides JSON -- Place of the replaced code by dispatch key; operators of `aten` only
);

-- One source of a kernel that the recording process itself compiled: generated by torch.compile for one graph, a user's Triton
-- kernel, or a CUDA extension's.
CREATE TABLE kernel_sources (
    name_id INTEGER, -- The kernel's name -> kernel_names.name_id
    kind VARCHAR, -- `inductor`, `triton` (a user's) or `cuda` (a user's)
    evidence VARCHAR, -- `launch` (a launch names it), `process`: by name
    file VARCHAR, -- Its file on the recording machine
    line INTEGER, -- Line of its `def` or `__global__`
    end_line INTEGER, -- Its last line
    hash VARCHAR, -- Hash of the generated source -> triton_launches.kernel_hash
    copy VARCHAR, -- Copy of the file, relative to the trace's folder
    user_file VARCHAR, -- File of the user's Triton kernel it was generated from
    user_line INTEGER, -- Its line there
    heuristic VARCHAR, -- Kind of the generated kernel, e.g. `persistent_reduction`
    graph VARCHAR, -- Compiled graph, e.g. `0_forward`
    graph_key VARCHAR, -- Cache key of that graph, which annotations name
    original_aten VARCHAR[], -- ATen operators it computes
    source_nodes VARCHAR[], -- Nodes of the program's graph it computes
    modules VARCHAR[], -- Modules of the model that these nodes belong to
    post_grad_nodes VARCHAR[], -- Nodes of the lowered graph, with provenance tracking
    stacks JSON, -- Lines of the program it computes, with provenance tracking
    meta JSON -- What the generated code states about itself, e.g. `num_load`
);

-- One distinct kernel name: fields read from the name, and the place of its source. Filled on first use.
-- Grades: docs/accuracy.md.
CREATE TABLE kernel_provenance (
    name_id INTEGER, -- The name -> kernel_names.name_id
    category VARCHAR, -- Kind of work, e.g. `matrix`
    function VARCHAR, -- Qualified name without template arguments
    library VARCHAR, -- Library it belongs to, e.g. `aten`, `cublas`, `triton`
    family VARCHAR, -- Algorithm, e.g. `elementwise`, `gemm`, `softmax`
    architecture VARCHAR, -- GPU architecture it was compiled for, e.g. `sm90`
    tensor_core BOOLEAN, -- It computes on tensor cores
    fields JSON, -- Every field read from the name, and template arguments by name
    grades JSON, -- Grade of each of those fields
    units VARCHAR[], -- Translation units that contain it; a single one if certain
    unit_grade VARCHAR, -- Grade of the units
    registered_by VARCHAR, -- Shared library that registered it, where recorded
    file VARCHAR, -- File of its own code (the functor of a generic launcher, else the template): path in its repository, or
        -- of a user's own file
    line INTEGER, -- Its first line
    end_line INTEGER, -- Its last line
    url VARCHAR, -- Permalink, at the commit at which the line is right
    file_grade VARCHAR, -- Grade of the file
    line_grade VARCHAR, -- Grade of the lines
    template_file VARCHAR, -- The `__global__` function: path in its repository, or of a user's own file
    template_line INTEGER, -- Its first line
    template_end_line INTEGER, -- Its last line
    template_url VARCHAR, -- Permalink, at the commit at which the line is right
    template_file_grade VARCHAR, -- Grade of the file
    template_line_grade VARCHAR -- Grade of the lines
);

-- One native function (an overload) that operators of this Session called. Filled on first use.
CREATE TABLE native_functions (
    native_function_id INTEGER, -- Identity
    name VARCHAR, -- Operator name, e.g. `aten::_softmax`
    overload VARCHAR, -- Overload, empty for the default; NULL if uncertain
    kind VARCHAR, -- `native`, `composite`, `generated`, `backward`, `custom`, `triton`, `range`
    category VARCHAR, -- Kind of work
    schema VARCHAR, -- Its schema, as in native_functions.yaml
    overload_grade VARCHAR, -- Grade of the overload and of all facts of the yaml entry
    structured_delegate VARCHAR, -- Overload whose structured kernel serves it
    dispatch_key VARCHAR, -- Key that serves the recorded device, e.g. `CUDA`
    cuda_function VARCHAR, -- Function registered for that key
    stub VARCHAR, -- Dispatch stub through which the function reaches its device code
    tags VARCHAR[], -- Tags of the yaml entry
    yaml_line INTEGER, -- Line in native_functions.yaml
    details JSON, -- autogen, derivative, forward operator, candidates, launchers, registration
    file VARCHAR, -- Where the function is defined: path in its repository, or of a user's own file
    line INTEGER, -- Its first line
    end_line INTEGER, -- Its last line
    url VARCHAR, -- Permalink, at the commit at which the line is right
    file_grade VARCHAR, -- Grade of the file
    line_grade VARCHAR, -- Grade of the lines
    stub_file VARCHAR, -- File of the function it launches through (the stub's, or one in a `.cu` file that it calls): path in its
        -- repository, or of a user's own file
    stub_line INTEGER, -- Its first line
    stub_end_line INTEGER, -- Its last line
    stub_url VARCHAR, -- Permalink, at the commit at which the line is right
    stub_file_grade VARCHAR, -- Grade of the file
    stub_line_grade VARCHAR -- Grade of the lines
);

-- The native function that one kind of recorded call reached.
CREATE TABLE operator_functions (
    name VARCHAR, -- As in operators.name
    overload VARCHAR, -- As in operators.overload
    input_types JSON, -- As in operators.input_types
    native_function_id INTEGER, -- Its function -> native_functions.native_function_id
    calls BIGINT, -- Operator calls
    self_device_ns BIGINT -- Their own device time [ns]
);

-- The torch release that made the traces, and the tables used. One row, once provenance is filled.
CREATE TABLE recognition (
    torch_version VARCHAR, -- Release that made the traces; NULL if no table covers it
    grade VARCHAR, -- Grade of the release
    hit_rates JSON, -- Share of the candidate kernel names found in each release's table
    reason VARCHAR, -- How the release was found, or why not
    candidate_kernels INTEGER, -- Kernel names that could be torch's own
    operator_table VARCHAR, -- Release whose tables are used
    operator_grade VARCHAR, -- Grade of that table for these traces
    source_indexes VARCHAR[] -- Releases whose source lines were used, best first
);

-- One user range: record_function, ProfilerStep, an NVTX range or mark, or its image on a device track.
CREATE TABLE annotations (
    annotation_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    side VARCHAR, -- `host` or `device`
    name VARCHAR, -- Name
    thread_id INTEGER, -- Host thread; NULL on a device -> threads.thread_id
    device INTEGER, -- Device ordinal; NULL on the host
    stream BIGINT, -- CUDA stream; NULL on the host
    external_id BIGINT, -- Kineto's External id
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT -- Duration [ns]
);

-- One profiler step (annotation `ProfilerStep#N`) of a trace.
CREATE TABLE steps (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    step INTEGER, -- N of ProfilerStep#N
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT, -- Duration [ns]
    thread_id INTEGER, -- Host thread -> threads.thread_id
    device_ns BIGINT, -- Device time of the activities launched in it [ns]
    kernel_count BIGINT -- Kernels launched in it
);

-- One sample of the program's steps without a profiler, from the sidecar; includes the warm-up.
CREATE TABLE unrecorded_steps (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    sample INTEGER, -- Number in the trace's sidecar, from 0
    kind VARCHAR, -- `period`: from step start to step start; `call`: from call to return; `alone`: a period that began with an
        -- idle device
    place VARCHAR, -- `before` a profiler was attached, or `after`
    stretch INTEGER, -- Consecutive samples share it
    step INTEGER, -- N of the first step or call in it
    step_count INTEGER, -- Number of steps it covers
    host_ns BIGINT, -- Time of all of them by the host's clock [ns]
    device_ns BIGINT -- Time of all of them between events on the stream [ns]
);

-- One call of a Python function (recorded with stacks).
CREATE TABLE frames (
    frame_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    thread_id INTEGER, -- Host thread -> threads.thread_id
    name VARCHAR, -- `file(line): function`, or `nn.Module: Linear_0`
    python_id BIGINT, -- Profiler's id, unique in its trace
    parent_python_id BIGINT, -- python_id of the caller
    module_id BIGINT, -- The module, if the frame is a module's call -> modules.module_id
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT -- Duration [ns]
);

-- One nn.Module instance whose calls were recorded.
CREATE TABLE modules (
    module_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    python_module_id BIGINT, -- Profiler's id of the instance
    name VARCHAR, -- Class and the profiler's instance count, e.g. `Linear_3`
    class_name VARCHAR, -- Class, e.g. `Linear`
    call_count BIGINT -- Recorded calls
);

-- One allocation (positive size) or release (negative size) seen by the allocator.
CREATE TABLE memory_events (
    memory_event_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    thread_id INTEGER, -- Host thread -> threads.thread_id
    time_ns BIGINT, -- When [ns]
    address UBIGINT, -- Address
    size_bytes BIGINT, -- Change [B]
    device_type INTEGER, -- c10::DeviceType: 0 CPU, 1 CUDA
    device INTEGER, -- Device ordinal; NULL on the CPU
    total_allocated_bytes BIGINT, -- Allocated after the event [B]
    total_reserved_bytes BIGINT, -- Reserved by the allocator after the event [B]
    operator_id BIGINT -- Innermost operator it belongs to; NULL if none -> operators.operator_id
);

-- One sample of a hardware counter of a device (CUPTI's PM sampling), of all that ran on it in the sample's interval.
CREATE TABLE counters (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    name VARCHAR, -- The metric as recorded, e.g. `sm__cycles_active.avg.pct_of_peak_sustained_elapsed`
    device INTEGER, -- Device ordinal
    time_ns BIGINT, -- Start of the sample's interval [ns]
    value DOUBLE -- As recorded
);

-- One invalid device record: in no other table, and in no figure except `summary.set_aside_ns`.
CREATE TABLE set_aside (
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    kind VARCHAR, -- `kernel`, `memcpy` or `memset`
    name VARCHAR, -- As recorded
    correlation_id BIGINT, -- As recorded
    device INTEGER, -- Device ordinal
    stream BIGINT, -- CUDA stream
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT, -- Duration [ns]
    reason VARCHAR -- `outside_recording` (far from all host events), `overruns_stream` (over its successors)
);

-- One record of a collective or point-to-point operation, as the host call or the kernel carries it.
CREATE TABLE collectives (
    collective_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    side VARCHAR, -- `host` (an operator) or `device` (a kernel)
    operator_id BIGINT, -- Innermost operator it belongs to; NULL if none -> operators.operator_id
    activity_id BIGINT, -- The kernel -> device_activities.activity_id
    name VARCHAR, -- Collective, e.g. `allreduce`
    data_type VARCHAR, -- Element type as recorded
    in_element_count BIGINT, -- Elements read
    out_element_count BIGINT, -- Elements written
    in_split_sizes VARCHAR, -- Split sizes of the input as recorded
    out_split_sizes VARCHAR, -- Split sizes of the output as recorded
    group_name VARCHAR, -- Process group
    group_description VARCHAR, -- Its description
    group_size INTEGER, -- Ranks of the group
    group_ranks VARCHAR, -- The ranks as recorded
    source_rank INTEGER, -- Sender of a point-to-point operation
    destination_rank INTEGER, -- Receiver of a point-to-point operation
    sequence BIGINT -- The group's sequence number of the operation; equal on all ranks
);

-- One synchronization recorded on the device timeline.
CREATE TABLE syncs (
    sync_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    kind VARCHAR, -- As recorded, e.g. `Stream Sync`, `Event Sync`
    device INTEGER, -- Device ordinal
    stream BIGINT, -- CUDA stream
    correlation_id BIGINT, -- Links to the runtime call, in its trace
    external_id BIGINT, -- External id written on the record
    wait_on_stream BIGINT, -- Stream waited for
    wait_on_event_id BIGINT, -- CUDA event waited for
    wait_on_event_correlation_id BIGINT, -- Correlation id of that event's record call
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT -- Duration [ns]
);

-- One link from a forward operator to the backward operator that differentiates it.
CREATE TABLE autograd_links (
    link_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    forward_operator_id BIGINT, -- Forward operator -> operators.operator_id
    backward_operator_id BIGINT, -- Backward operator -> operators.operator_id
    evidence VARCHAR -- `flow` (recorded arrow) or `sequence_number`
);

-- What torch.compile wrote on one operator that launches a Triton kernel.
CREATE TABLE triton_launches (
    operator_id BIGINT, -- Innermost operator it belongs to; NULL if none -> operators.operator_id
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    kernel_name VARCHAR, -- Name of the kernel, as inductor or else the operator has it
    kernel_backend VARCHAR, -- e.g. `triton`
    kernel_file VARCHAR, -- Generated source file
    kernel_hash VARCHAR, -- Hash of the generated source
    kernel_kwargs VARCHAR, -- Compile-time arguments as recorded
    grid VARCHAR, -- Launch grid as recorded
    stream BIGINT, -- Handle of the CUDA stream, 0 for the default one
    num_warps INTEGER, -- Warps of a block
    num_stages INTEGER, -- Pipeline stages
    kernel_flop DOUBLE, -- Floating-point operations, by inductor [FLOP]
    kernel_num_gb DOUBLE -- Bytes moved, by inductor, in 1e9 bytes [GB]
);

-- One distinct call: calls of one operator with the same recorded arguments, or equal launches without an operator, with the
-- least work of each call. Their device time is that of their own activities, so the rows sum to all device time.
-- Filled on first use.
CREATE TABLE call_costs (
    call_id INTEGER, -- Identity, from 0
    name VARCHAR, -- Operator; for launches without an operator, the activity's name
    overload VARCHAR, -- As in operators.overload
    input_shapes JSON, -- As in operators.input_shapes
    input_types JSON, -- As in operators.input_types
    input_strides JSON, -- As in operators.input_strides
    concrete_inputs JSON, -- As in operators.concrete_inputs
    attribution VARCHAR, -- NULL for calls of an operator; else the launches' attribution
    calls BIGINT, -- Number of calls, or of launches without an operator
    self_device_ns BIGINT, -- Device time of their own activities [ns]
    flop_count BIGINT, -- Floating-point operations of one call [FLOP]
    flop_source VARCHAR, -- How they are counted (closed set)
    read_bytes BIGINT, -- Distinct bytes one call reads from device memory [B]
    written_bytes BIGINT, -- Distinct bytes one call writes to device memory [B]
    data_type VARCHAR, -- Type whose peak limits its operations, e.g. `bf16`
    evidence VARCHAR, -- How the bytes are known (closed set); NULL if unknown
    reason VARCHAR -- Why something is unknown
);

-- One device activity and the distinct call it belongs to; every activity has one. Filled on first use.
CREATE TABLE activity_costs (
    activity_id BIGINT, -- The activity -> device_activities.activity_id
    call_id INTEGER -- Its distinct call -> call_costs.call_id
);

-- One interval the profiler spent on itself.
CREATE TABLE overheads (
    overhead_id BIGINT, -- Identity
    trace_id INTEGER, -- Trace the row comes from -> traces.trace_id
    name VARCHAR, -- What, e.g. `Activity Buffer Request`
    thread_id INTEGER, -- Track it was recorded on -> threads.thread_id
    start_ns BIGINT, -- Start [ns]
    duration_ns BIGINT -- Duration [ns]
);

-- One fact about the data that qualifies the figures.
CREATE TABLE findings (
    code VARCHAR, -- Stable identifier, e.g. `trace.truncated`
    severity VARCHAR, -- `info`, `warning` or `error`
    message VARCHAR, -- One sentence
    suggestion VARCHAR, -- What to do
    trace_id INTEGER, -- Trace it concerns; NULL for all -> traces.trace_id
    evidence JSON -- The numbers it rests on
);

-- One key of the Session itself.
CREATE TABLE metadata (
    key VARCHAR, -- `schema_version`, `opscope_version`, `sidecar`, …
    value VARCHAR -- Its value
);
