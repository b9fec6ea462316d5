"""What vulture cannot see used, with the reason: an allow-list for `scripts/check`, never run."""

_ = object()

# Written into JSON (`report/json_encoding.py`) or into a table (`report/document.py`) by name, or part of a
# saved result that is read back.
_.aten_operator_ns
_.backward_ns
_.bubble_fraction
_.build_ns
_.candidate_interval_ns
_.clean_window
_.copy_ns
_.device_fraction
_.device_ns_per_call
_.device_ns_per_layer
_.device_ns_per_token
_.empty_fraction
_.ideal_fraction
_.input_sets
_.kernel_count
_.largest_threads
_.launch_error
_.launch_path_ns
_.launched_outside_ns
_.max_ns
_.memory_clock_mhz
_.min_ns
_.operator_entry_fraction
_.occupancy_estimate
_.opscope_version
_.outside_steps_launches
_.overrides
_.post_grad_nodes
_.predicted_gain_ns
_.predicted_interval_ns
_.reference_interval_ns
_.source_file
_.source_mapped_fraction
_.torch_kernel_ns
_.transfers
_.warp_threads
_.window_ns

# Facts of a decoded kernel name: columns of `kernel_provenance`, filled by field.
_.alignment
_.epilogue
_.head_dimension
_.output_type
_.output_vector_width
_.vector_width

# Attributes and methods that a library reads or calls.
_._value_
_._torchdynamo_disable
_.algorithm_bytes_per_s
_.allow_tf32
_.acc_events
_.block_shape
_.debug
_.is_infra_mode
_.named_args
_.no_wrap
_.on_broken_pipe
_.overflow
_.supports_higher_order_operators
_.suppress_keyboard_interrupt
_.text_factory

# Members of closed sets and fields of formats, listed whole.
_.CALL
_.MEMCPY
_.MEMSET
_.RATIO
_.RECORDING
_.STARTED
_.WARP_LATENCY
_.accumulates_in
_.memory_pin_bits_per_s
_.parent_process
_.replay_passes

# What people call on the rows of a query; what notebooks look up by name.
_.arrow
_.df
_.pl

# Samples left out of an unrecorded step's time: documents have every field of it.
_.warmup_samples

# Changes that rules ask for by name (`operator.methodcaller`).
_.drop_host_between
_.drop_questions
_.run_beside

# Read by the template of pages.
_.has_arrows
_.height_px

# What users read of `Session.check()`.
_.law

# Called by mkdocs.
_.on_page_markdown

# `tempfile.tempdir`, which a forked process forgets.
_.tempdir

# What `http.server` looks up by name.
_.daemon_threads
_.translate_path
_.handle_error
_.log_message
_.server_version
_.sys_version

# Fields of structs that other code reads through Arrow's C interface, and the hook that hatchling calls.
_._fields_
_.buffer_count
_.child_count
_.dictionary
_.initialize
_.ScannerHook

# Called by the edited scripts of the field benchmark.
_.endless

# Words that saved sessions of older releases hold.

# Looked up by the suites, as the name of a kernel with `_teaching`.
_.gelu_teaching
_.square_teaching
_.add_teaching
_.layer_norm_teaching
_.matmul_teaching
_.softmax_teaching
_.ignore_compile_internals
_.__torch_dispatch__
_.__kwdefaults__

# A verb, called by its name.
_.extract

# Called by pickle.
_.find_class

# Programs of a machine, asked by name where a diagnosis shows them (`toolchain/doctor/checks.py`).
_.cuobjdump
_.ninja
_.nsys
