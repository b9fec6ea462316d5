"""Records any CUDA program without Nsight Systems: a CUPTI library of ours that CUDA itself loads into it.

The C sources in `native` are compiled when first needed (`library`). Programs run with the library in
CUDA_INJECTION64_PATH, each of their processes leaves one file of records (`recording`), and each file becomes
a Kineto trace with a sidecar (`trace_file`).
"""
