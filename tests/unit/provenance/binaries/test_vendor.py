import pytest

from opscope.provenance.binaries.process import vendor_libraries, vendor_of_file


@pytest.mark.parametrize(
    ("file", "vendor"),
    [
        ("libcublas.so.13", "cublas"),
        ("/usr/lib/libcublasLt.so.12.8.4.1", "cublasLt"),
        ("libcublasLt-1ca44a9b.so.12", "cublasLt"),
        ("libcudnn.so.9", "cudnn"),
        ("libcudnn_engines_precompiled.so.9", "cudnn"),
        ("libnccl.so", "nccl"),
        ("libcufft.so.12", "cufft"),
        ("libcusparseLt.so.0", "cusparseLt"),
        ("libcusolverMg.so.12", "cusolverMg"),
        ("libnvshmem_host.so.3", "nvshmem"),
        ("libtorch_cuda.so", None),
        ("libcublasXt.so.13", None),
        ("libcublas.a", None),
        ("cublas.so", None),
        ("libcudnn_frontend.py", None),
    ],
)
def test_vendors_by_file_name(file, vendor):
    assert vendor_of_file(file) == vendor


def test_vendor_libraries_among_files_and_folders(tmp_path):
    for file in ("libcublas.so.13", "libtorch.so", "libnccl.so.2"):
        (tmp_path / file).touch()
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "libcudnn.so.9").touch()
    assert vendor_libraries([tmp_path, extra / "libcudnn.so.9"]) == (
        extra / "libcudnn.so.9",
        tmp_path / "libcublas.so.13",
        tmp_path / "libnccl.so.2",
    )
