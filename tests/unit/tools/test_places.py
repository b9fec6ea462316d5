"""Places of native functions: what singles a definition out, what the binary vetoes, what stays unknown."""

import pytest

from case_tables import cases
from opscope.provenance.native_functions import Place
from opscope.provenance.sources import StoredLines
from torch_tables.operator_table import Places, native_function

NATIVE = "aten/src/ATen/native"


def native(body):
    return f"namespace at::native {{\n{body}\n}}\n"


FILES = {
    "cuda/A.cu": native("Tensor f_cuda(const Tensor& x) {}\nvoid twice() {}\nvoid f(int64_t x) {}"),
    "cuda/B.cu": native("void twice() {}"),
    "A.cpp": native(
        "void g(const Tensor& x) {}\nvoid g(const Tensor& x, const Scalar& y) {}\nvoid f(int64_t x) {}"
    ),
    "mps/A.mm": native("void f(int64_t x) {}\nvoid only_mps() {}"),
    "cpu/A.cpp": native("void only_cpu() {}"),
    "ChanelShuffle.cpp": native("Tensor channel_shuffle(const Tensor& x, int64_t g) {}"),
    "xnnpack/ChannelShuffle.cpp": (
        "namespace at::native::xnnpack { Tensor channel_shuffle(const Tensor& x, int64_t g) {} }"
    ),
    "Dropout.cpp": native(
        "namespace { template <bool b> Tensor channel_shuffle(const Tensor& x, int64_t g) {} }"
    ),
    "Indexing.cpp": native("TORCH_IMPL_FUNC(gather_out)(const Tensor& x, int64_t d, const Tensor& o) {}"),
    "Named.cpp": native("Tensor& gather_out(const Tensor& x, Dimname d, Tensor& o) {}"),
    "details.cpp": "namespace a::details { void inside() {} }",
}


@cases("name", "key", "parameters", "place")
def test_a_native_function(index_of, name, key, parameters, place):
    index = index_of({f"{NATIVE}/{path}": text for path, text in FILES.items()})
    found = native_function(index, name, key=key, parameters=parameters)
    assert (found and f"{found.file}:{found.line}") == (place and f"{NATIVE}/{place}")


FUNCTION = f"{NATIVE}/cuda/A.cu"


class TestEvidence:
    """The function `f`, lines 3 to 5 of an index, in a release whose checks tell how far lines moved."""

    TEXT = "namespace at::native {\n\nvoid f() {\n\n}\n}\n"

    def place(self, index_of, *, own=False, segments=None, files=None, name=FUNCTION):
        index = index_of({name: self.TEXT})
        lines = StoredLines(1, "2.6.0", {name: segments}) if segments else None
        places = Places(index if own else None, None if own else index, lines, {"f": files} if files else {})
        return places.function("f", "CUDA", [], "CUDA")[0]

    @cases("segments", "place")
    def test_lines_of_a_neighbor_move_with_the_checks(self, index_of, segments, place):
        facts = [None if one == "none" else one for one in place]
        assert self.place(index_of, segments=segments) == Place(FUNCTION, *facts)

    def test_lines_of_the_release_stay(self, index_of):
        place = Place(FUNCTION, "release", 3, 5, "release")
        assert self.place(index_of, own=True, segments=((1, 9, 20),)) == place

    @pytest.mark.parametrize("files", [(FUNCTION,), (FUNCTION, "Z.cu")])
    def test_a_file_that_the_binary_supports_is_known_as_well_as_the_binary(self, index_of, files):
        supported = Place(FUNCTION, "release", 3, 5, "neighbor_version", None, False)
        assert self.place(index_of, files=files) == supported

    def test_a_contradicted_file_goes_with_its_line_but_a_header_stays(self, index_of):
        assert self.place(index_of, files=("B.cu",)) == Place("B.cu", "release")
        assert self.place(index_of, files=("B.cu", "C.cu")) is None
        place = self.place(index_of, files=("B.cu",), name=f"{NATIVE}/cuda/A.cuh")
        assert place is not None and place.file.endswith("A.cuh")

    def test_a_function_that_no_index_has_is_in_the_file_of_the_binary(self):
        places = Places(None, None, None, {"f": ("B.cu",)})
        assert places.function("f", "CUDA", [], "CUDA") == (Place("B.cu", "release"), {}, ())
        assert places.function("g", "CUDA", [], "CUDA") == (None, {}, ())


def test_stubs_have_what_is_registered_for_the_backend(index_of):
    sin = "void sin_kernel(int x) {}\nREGISTER_DISPATCH(sin_stub, &sin_kernel)"
    files = {
        "A.cpp": "DEFINE_DISPATCH(sin_stub);\nDEFINE_DISPATCH(cast_stub);\nDEFINE_DISPATCH(lu_stub);\n"
        "void f() { sin_stub(x); cast_stub(x); lu_stub(x); }\nREGISTER_NO_CPU_DISPATCH(lu_stub)",
        "cuda/A.cu": f"{sin}\nREGISTER_DISPATCH(cast_stub, static_cast<fn>(&sin_kernel))",
        "cpu/A.cpp": sin,
        "cuda/linalg/L.cpp": "void lu(int x) {}\nREGISTER_CUDA_DISPATCH(lu_stub, &lu)",
    }
    index = index_of({f"{NATIVE}/{name}": native(text) for name, text in files.items()})
    places = Places(index, None, None, {})

    def found(backend):
        _, stubs, _ = places.function("f", "CUDA", [], backend)
        every = [(stub, one) for stub, registered in stubs.items() for one in registered]
        return {stub: (one.name, one.function, f"{one.file}:{one.place.line}") for stub, one in every}

    assert found("CUDA") == {
        "sin_stub": ("sin_kernel", "sin_kernel", f"{NATIVE}/cuda/A.cu:2"),
        # What is no plain name is where it is registered.
        "cast_stub": ("cast_stub", "", f"{NATIVE}/cuda/A.cu:4"),
        "lu_stub": ("lu", "lu", f"{NATIVE}/cuda/linalg/L.cpp:2"),
    }
    assert found("CPU") == {
        "sin_stub": ("sin_kernel", "sin_kernel", f"{NATIVE}/cpu/A.cpp:2"),
        "lu_stub": ("lu_stub", "", f"{NATIVE}/A.cpp:6"),
    }


CUDA = "aten/src/ATen/native/cuda"
CALLER = """
    namespace at::native {
    void caller() {
      launch_one(self);
      shared(self);
      helper(self);
      Thing::member(self);
      if (self.defined()) { launch_two(self); }
    }
    }
"""
CALLED = {
    f"{CUDA}/Caller.cpp": CALLER,
    f"{CUDA}/One.cu": "namespace at::native { void launch_one(int) {} void launch_one(float) {} "
    "void shared() {} }",
    f"{CUDA}/Two.cu": "namespace at::native { void launch_two() { launch_one(1); } }",
    f"{CUDA}/Member.cu": "namespace at::native { struct Thing { static void member() {} }; }",
    "aten/src/ATen/native/cpu/Shared.cpp": "namespace at::native { void shared() {} }",
    "aten/src/ATen/native/Helper.h": "namespace at::native { inline void helper() {} }",
}


@pytest.fixture
def index(index_of):
    return index_of(CALLED)


def test_a_function_names_those_that_one_cu_file_alone_defines(index):
    assert native_function(index, "caller").launchers == ("launch_one", "launch_two")
    # A function of a `.cu` file is at the device already.
    assert native_function(index, "launch_two").launchers == ()


def test_launchers_are_located(index):
    """Of overloads in one file the line stays open."""
    _, _, launched = Places(index, None, None, {}).function("caller", "CUDA", [], "CUDA")
    assert [(one.name, one.file, one.place and one.place.line) for one in launched] == [
        ("launch_one", f"{CUDA}/One.cu", None),
        ("launch_two", f"{CUDA}/Two.cu", 1),
    ]
