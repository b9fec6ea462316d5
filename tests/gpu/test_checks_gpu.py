"""What only a device can show: poisoned device memory, ceilings by events, clocks by NVML, peak memory."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.check import check_output, poisoned_memory  # noqa: E402
from opscope.benchmarking.device_state import NvmlMonitor, state_reader  # noqa: E402
from opscope.benchmarking.inputs import count_flops, min_bytes, peak_memory_bytes  # noqa: E402
from opscope.benchmarking.limits import measure_ceilings  # noqa: E402
from opscope.benchmarking.problem import Implementation, Problem  # noqa: E402
from opscope.benchmarking.timer import CudaEventTimer  # noqa: E402
from opscope.model.benchmark import CacheState, Status  # noqa: E402

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
CEILINGS = ("copy", "copy_large", "matrix_float32", "matrix_tf32", "matrix_bfloat16", "matrix_float16")
# The allocator's small pool, its 20 MiB segments, segments of their own.
SIZES = (1, 1_000, 200_000, 1_000_000, 4_000_000, 64_000_000)


def problem(size=100_000, dtype="float32", **options):
    def make_inputs(seed):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        return (torch.randn(size, generator=generator, device=DEVICE).to(getattr(torch, dtype)),)

    return Problem(
        name="test",
        device=DEVICE,
        make_inputs=make_inputs,
        implementations=(Implementation("ours", lambda: torch.exp),),
        reference="ours",
        dtype=dtype,
        **options,
    )


class TestNeverWritten:
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_a_result_nobody_wrote(self, size, dtype):
        same = problem(size, dtype)
        for _ in range(3):  # the right answer lies about in freed memory
            assert check_output(torch.exp, same, reference=torch.exp).status is Status.OK
        outcome = check_output(torch.empty_like, same, reference=torch.exp)
        assert outcome.status is Status.WRONG
        assert outcome.reason.startswith(f"output: {size} of {size} elements are not finite")

    @pytest.mark.parametrize("size", SIZES)
    def test_a_last_element_nobody_wrote(self, size):
        def all_but_one(x):
            out = torch.empty_like(x)
            out[:-1] = x[:-1].exp()
            return out

        same = problem(size)
        check_output(torch.exp, same, reference=torch.exp)
        outcome = check_output(all_but_one, same, reference=torch.exp)
        assert outcome.reason.startswith(f"output: 1 of {size} elements are not finite")

    @pytest.mark.parametrize("size", SIZES)
    def test_memory_behind_temporaries(self, size):
        def with_temporaries(x):
            half = x[: max(1, size // 2)] * 2
            powers = (x - x.max() + half[0] * 0).exp()
            out = torch.empty_like(x)
            out[:-1] = (powers / powers.sum())[:-1]
            return out

        # The output may lie where the function itself has written a temporary: garbage, but no NaN.
        outcome = check_output(with_temporaries, problem(size), reference=lambda x: x.softmax(0))
        assert outcome.status is Status.WRONG

    def test_among_memory_that_is_in_use(self):
        """Free parts of segments that other tensors hold, with the right answer in them."""
        answer = check_output(torch.exp, problem(1_000_000), reference=torch.exp).outputs
        kept = [answer.clone() for _ in range(40)]
        del kept[::2]
        outcome = check_output(torch.empty_like, problem(1_000_000), reference=torch.exp)
        assert outcome.reason.startswith("output: 1000000 of 1000000 elements are not finite")

    def test_integers_and_booleans(self):
        for value in (0, -1):
            outcome = check_output(
                lambda x: torch.empty_like(x, dtype=torch.int32),
                problem(),
                reference=lambda x, value=value: torch.full_like(x, value, dtype=torch.int32),
            )
            assert outcome.status is Status.WRONG
        for flag in (False, True):
            outcome = check_output(
                lambda x: torch.empty_like(x, dtype=torch.bool),
                problem(),
                reference=lambda x, flag=flag: torch.full_like(x, flag, dtype=torch.bool),
            )
            assert outcome.status is Status.WRONG

    def test_operators_that_others_register_and_backward_passes(self):
        @torch.library.custom_op("opscope_test::half_written_on_gpu", mutates_args=())
        def half_written(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            out[::2] = x[::2]
            return out

        half_written.register_autograd(lambda context, gradient: torch.empty_like(gradient))
        with poisoned_memory(DEVICE):
            x = torch.ones(4, device=DEVICE, requires_grad=True)
            made = half_written(x)
            (gradient,) = torch.autograd.grad(made.sum(), x)
        assert made.isnan().tolist() == [False, True, False, True]
        assert gradient.isnan().all()

    def test_what_a_cuda_graph_would_play_again_is_left_alone(self):
        graph = torch.cuda.CUDAGraph()
        value = torch.ones(1, device=DEVICE)
        with poisoned_memory(DEVICE), torch.cuda.graph(graph):
            torch.empty(1, device=DEVICE)
            value.add_(1)
        graph.replay()
        assert value.item() == 2


def test_a_result_on_the_cpu_is_wrong():
    outcome = check_output(lambda x: x.exp().cpu(), problem(), reference=torch.exp)
    assert outcome.reason == "output is on cpu, not on cuda:0"


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_compiled_function_is_right():
    compiled = torch.compile(lambda x: 0.5 * x * (1 + torch.erf(x * 0.7071067811865476)))
    expected = torch.nn.functional.gelu
    assert check_output(compiled, problem(), reference=expected).status is Status.OK


def test_tf32_fails_the_tolerance_of_float32_and_passes_its_own():
    def make_inputs(seed):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        return tuple(torch.randn(2048, 2048, generator=generator, device=DEVICE) for _ in range(2))

    def tf32(a, b):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = a.dtype == torch.float32
        try:
            return a @ b
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    product = Problem("mm", DEVICE, make_inputs, (), "torch", dtype="float32")
    assert check_output(torch.mm, product, reference=torch.mm).status is Status.OK
    assert check_output(tf32, product, reference=torch.mm).status is Status.WRONG
    assert check_output(tf32, product, reference=torch.mm, tolerance=1e-2).status is Status.OK


def test_out_of_memory_is_a_status():
    outcome = check_output(
        lambda x: torch.empty(1 << 50, dtype=torch.uint8, device=DEVICE), problem(), reference=torch.exp
    )
    assert outcome.status is Status.OUT_OF_MEMORY
    assert check_output(torch.exp, problem(), reference=torch.exp).status is Status.OK


def test_attention_without_float64_falls_back_to_its_own_dtype():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def make_inputs(seed):
        generator = torch.Generator(DEVICE).manual_seed(seed)
        shape = (1, 4, 256, 64)
        return tuple(torch.randn(shape, generator=generator, device=DEVICE).half() for _ in range(3))

    def flash(q, k, v):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    attention = Problem("attention", DEVICE, make_inputs, (), "flash", dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says for each backend why it does not take float64
        outcome = check_output(flash, attention, reference=flash)
    assert outcome.status is Status.OK
    assert outcome.check.reference.startswith("flash in float16; flash in float64 failed: ")


class TestCosts:
    def test_peak_memory_is_what_one_call_adds(self):
        (x,) = problem(1 << 20).make_inputs(0)
        kept = x.clone()
        assert peak_memory_bytes(lambda: x + 1, DEVICE) == 4 << 20
        assert peak_memory_bytes(lambda: (x + 1) * (x + 2), DEVICE) == 12 << 20
        assert kept is not None

    def test_bytes_and_operations(self):
        a = torch.randn(64, 32, device=DEVICE)
        b = torch.randn(32, 16, device=DEVICE)
        assert min_bytes((a, b), a @ b) == 4 * (64 * 32 + 32 * 16 + 64 * 16)
        assert count_flops(torch.mm, (a, b)) == 2 * 64 * 32 * 16


class TestCeilings:
    def test_every_ceiling_of_the_device(self):
        before = torch.backends.cuda.matmul.allow_tf32
        found = {
            one.name: one
            for one in measure_ceilings(DEVICE, CEILINGS, CudaEventTimer(DEVICE, CacheState.COLD))
        }
        lacking = {"matrix_tf32", "matrix_bfloat16"} if torch.cuda.get_device_capability() < (8, 0) else set()
        assert list(found) == [name for name in CEILINGS if name not in lacking]
        assert torch.backends.cuda.matmul.allow_tf32 == before
        assert all(one.per_s > 0 for one in found.values())
        if "matrix_tf32" in found:
            assert found["matrix_tf32"].per_s > found["matrix_float32"].per_s


class TestNvml:
    def test_a_busy_device_has_clocks(self):
        pytest.importorskip("pynvml")
        read_state, reason = state_reader(DEVICE)
        assert reason is None
        (x,) = problem(1 << 24).make_inputs(0)
        for _ in range(2000):
            x = x * 1.0001
        state = read_state()
        torch.cuda.synchronize()
        assert state.sm_clock_mhz > 0
        assert state.memory_clock_mhz > 0
        assert state.sm_clock_mhz <= state.max_sm_clock_mhz
        assert state.temperature_c > 0

    def test_it_is_the_device_torch_means(self):
        pynvml = pytest.importorskip("pynvml")
        monitor = NvmlMonitor(DEVICE)
        memory = pynvml.nvmlDeviceGetMemoryInfo(monitor._handle).total
        total = torch.cuda.get_device_properties(DEVICE).total_memory
        assert abs(memory - total) < 0.05 * memory
        uuid = pynvml.nvmlDeviceGetUUID(monitor._handle)
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        assert str(torch.cuda.get_device_properties(DEVICE).uuid) in uuid
