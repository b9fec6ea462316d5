"""Replaying recorded calls: exact results, nothing of the user's, no memory, reasons, not exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.analysis.cost.arguments import CallArguments, parse_arguments, with_list_type
from opscope.analysis.cost.assembly import assemble_cost
from opscope.analysis.cost.call_cost import CallCost, CostEvidence
from opscope.analysis.cost.replayable import obstacle

torch = pytest.importorskip("torch")

from opscope.analysis.cost.replay import Replayed, replay  # noqa: E402 - needs torch

pytestmark = pytest.mark.torch
ones = torch.ones

Item = tuple[Any, str, Any, str]  # shape, type, strides, value


def tensor(*shape: int, of: str = "float", strides: list[int] | None = None) -> Item:
    return list(shape), of, torch.empty(shape, device="meta").stride() if strides is None else strides, ""


def number(value: Any, kind: str = "Scalar") -> Item:
    return [], kind, [], str(value)


NOTHING: Item = ([], "", [], "")


def call(name: str, *items: Item, overload: str | None = None) -> CallArguments:
    shapes, types, strides, concrete = (
        (
            [list(one) if isinstance(one, tuple) else one for one in column]
            for column in zip(*items, strict=True)
        )
        if items
        else ([], [], [], [])
    )
    return parse_arguments(
        f"aten::{name}", overload=overload, shapes=shapes, types=types, strides=strides, concrete=concrete
    )


def replayed(name: str, *items: Item, overload: str | None = None) -> Replayed:
    (one,) = replay([call(name, *items, overload=overload)])
    return one


def outputs(name: str, *items: Item, overload: str | None = None) -> list[tuple[tuple[int, ...], str | None]]:
    one = replayed(name, *items, overload=overload)
    assert one.effects is not None, one.reason
    return [(output.shape, output.type_name) for output in one.effects.outputs]


def cost(name: str, *items: Item) -> CallCost:
    one = replayed(name, *items)
    assert one.effects is not None, one.reason
    return assemble_cost(one.effects, CostEvidence.REPLAYED)


def reason(name: str, *items: Item, overload: str | None = None) -> str:
    one = replayed(name, *items, overload=overload)
    assert one.effects is None
    assert one.reason
    return one.reason


class TestResults:
    def test_a_product(self) -> None:
        assert outputs("mm", tensor(3, 4), tensor(4, 5)) == [((3, 5), "float32")]

    def test_promotion_and_broadcasting(self) -> None:
        assert outputs("add", tensor(3, 1, of="c10::Half"), tensor(4), number(1)) == [((3, 4), "float32")]

    def test_a_python_number_does_not_widen(self) -> None:
        assert outputs("mul", tensor(3, of="c10::Half"), tensor(of="double")) == [((3,), "float16")]
        assert outputs("add", tensor(of="float"), tensor(of="double"), number(1)) == [((), "float32")]

    def test_several_results(self) -> None:
        items = (tensor(2, 8), number("[8]", "ScalarList"), tensor(8), tensor(8), number(1e-5))
        assert [shape for shape, _ in outputs("native_layer_norm", *items)] == [(2, 8), (2, 1), (2, 1)]

    def test_results_that_are_not_wanted_are_left_out(self) -> None:
        items = (
            tensor(2, 4, 6, 6), tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), NOTHING,
            *(number(text, "ScalarList") for text in ("[1, 1]", "[0, 0]", "[1, 1]")), number(False),
            number("[0, 0]", "ScalarList"), number(1), number("[False, True, False]", "ScalarList"),
        )  # fmt: skip
        assert outputs("convolution_backward", *items) == [((4, 3, 3, 3), "float32")]

    def test_a_type_given_by_its_number(self) -> None:
        items = (tensor(4, 4), tensor(4, 4), number(-1), number(15))
        assert outputs("_softmax_backward_data", *items) == [((4, 4), "bfloat16")]

    def test_a_convolution_of_a_library(self) -> None:
        lists = (number(text, "ScalarList") for text in ("[1, 1]", "[2, 2]", "[1, 1]"))
        items = (tensor(2, 3, 8, 8), tensor(4, 3, 3, 3), *lists, number(1), *[number(True)] * 3)
        assert outputs("cudnn_convolution", *items) == [((2, 4, 4, 4), "float32")]

    def test_fused_attention_leaves_out_sums_that_are_not_wanted(self) -> None:
        def items(*, sums: bool) -> list[Item]:
            lengths = [number(16), number(16)]
            switches = [number(sums), number("0."), number(False), number(False), number(0.125)]
            return [*[tensor(1, 12, 16, 64, of="c10::Half")] * 3, *[NOTHING] * 3, *lengths, *switches]

        without = cost("_cudnn_attention_forward", *items(sums=False))
        assert without.written_bytes == 2 * 12 * 16 * 64
        assert cost("_cudnn_attention_forward", *items(sums=True)).written_bytes == (
            2 * 12 * 16 * 64 + 4 * 12 * 16
        )

    def test_lists_of_tensors(self) -> None:
        members: Item = ([[2, 3], [4]], "TensorList", [[3, 1], [1]], "")
        typed = with_list_type(call("_foreach_add_", members, number(1.0)), "c10::BFloat16")
        (one,) = replay([typed])
        assert one.effects is not None
        assert [output.shape for output in one.effects.outputs] == [(2, 3), (4,)]
        moved = assemble_cost(one.effects, CostEvidence.REPLAYED)
        assert (moved.read_bytes, moved.written_bytes) == (20, 20)


class TestWhatIsWritten:
    def test_in_place_reads_and_writes_itself(self) -> None:
        one = cost("add_", tensor(8), tensor(8), number(1))
        assert (one.read_bytes, one.written_bytes) == (64, 32)

    def test_a_copy_does_not_read_its_target(self) -> None:
        one = cost("copy_", tensor(8), tensor(8, of="c10::Half"), number(False))
        assert (one.read_bytes, one.written_bytes) == (16, 32)

    def test_a_result_given_to_be_allocated_has_its_final_size(self) -> None:
        one = cost("arange", number(0), number(256), number(1), tensor(0, of="long int"))
        assert (one.read_bytes, one.written_bytes) == (0, 2048)

    def test_views_move_nothing(self) -> None:
        for name, items in (
            ("view", (tensor(4, 4), number("[16]", "ScalarList"))),
            ("t", (tensor(4, 4),)),
            ("unbind", (tensor(4, 4), number(0))),
            ("squeeze_", (tensor(4, 1),)),
        ):
            one = cost(name, *items)
            assert (one.read_bytes, one.written_bytes) == (0, 0), name

    def test_expanded_arguments_are_read_once(self) -> None:
        one = cost("add", tensor(8, 4, strides=[0, 1]), tensor(8, 4), number(1))
        assert one.read_bytes == 16 + 128

    def test_dense_but_transposed_results_are_counted_whole(self) -> None:
        assert cost("relu", tensor(8, 4, strides=[1, 8])).written_bytes == 128


class TestOverloads:
    def test_a_recorded_overload_is_the_one(self) -> None:
        assert outputs("max", tensor(4, 5), number(1), number(False), overload="dim") == [
            ((4,), "float32"),
            ((4,), "int64"),
        ]

    def test_an_overload_that_is_not_there(self) -> None:
        assert "no such overload" in reason("mm", tensor(2, 2), tensor(2, 2), overload="Tensor")
        assert "no such overload" in reason("frobnicate", tensor(2, 2))

    def test_a_result_of_another_size_is_no_result(self) -> None:
        # max(self, other), for max.unary_out would have to make the second tensor smaller
        assert outputs("max", tensor(4, 5), tensor(4, 5)) == [((4, 5), "float32")]

    def test_values_that_were_not_recorded(self) -> None:
        shapes, types = [[4, 5], [], [], []], ["float", "", "Scalar", ""]
        (unknown,) = replay([parse_arguments("aten::sum", shapes=shapes, types=types)])
        assert unknown.reason == "its argument dim was not recorded"
        (shapeless,) = replay(
            [parse_arguments("aten::add", shapes=[[4], [4], []], types=["float", "float", "Scalar"])]
        )
        assert shapeless.effects is not None


class TestReasons:
    def test_sizes_that_depend_on_data(self) -> None:
        assert reason("nonzero", tensor(4, 5)) == "the size of its results depends on the data"
        assert "depends on the data" in reason("masked_select", tensor(4), tensor(4, of="bool"))

    def test_arguments_that_no_device_takes(self) -> None:
        assert "does not take these arguments" in reason("mm", tensor(2, 3), tensor(4, 5))

    def test_lists_without_members(self) -> None:
        assert "lists of tensors" in reason("cat", ([], "TensorList", [], ""), number(0))

    def test_defects(self) -> None:
        assert "negative" in reason("relu", ([-1], "float", [1], ""))
        assert "no device holds" in reason("relu", tensor(1 << 20, 1 << 20, 1 << 20))

    def test_the_interpreters_functions_do_not_run(self) -> None:
        state = torch.random.get_rng_state()
        assert "no such overload" in reason("manual_seed", number(1))
        assert "no such overload" in reason("set_grad_enabled", number(False))
        assert torch.is_grad_enabled()
        assert torch.equal(state, torch.random.get_rng_state())

    def test_loops_of_recorded_length_do_not_run(self) -> None:
        assert "without running it" in reason("matrix_power", tensor(4, 4), number(1 << 40))
        assert "decided by recorded numbers" in reason("unsafe_split", tensor(1 << 30), number(1), number(0))

    @pytest.mark.parametrize(
        "name", ["mylib::op", "record_param_comms", "c10d::allreduce_", "CompiledFunction"]
    )
    def test_what_is_not_torchs_does_not_run(self, name: str) -> None:
        unknown = parse_arguments(name, shapes=[[4]], types=["float"], strides=[[1]], concrete=[""])
        assert obstacle(unknown) is not None
        assert replay([unknown])[0].reason == obstacle(unknown)


class TestNothingOfTheUsers:
    @pytest.fixture
    def custom(self) -> Iterator[list[str]]:
        ran: list[str] = []
        library = torch.library.Library("opscope_replay_test", "DEF")
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: ran.append("meta") or torch.empty_like(x), "Meta")
        yield ran
        library._destroy()

    def test_functions_for_shapes_do_not_run(self, custom: list[str]) -> None:
        named = parse_arguments(
            "opscope_replay_test::double", shapes=[[4]], types=["float"], strides=[[1]], concrete=[""]
        )
        assert "opscope_replay_test::double" in str(replay([named])[0].reason)
        assert custom == []

    def test_modes_do_not_run(self) -> None:
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        ran: list[object] = []

        class Dispatch(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                ran.append(func)
                return func(*args, **(kwargs or {}))

        class Function(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                ran.append(func)
                return func(*args, **(kwargs or {}))

        addition = call("add", tensor(4), tensor(4), number(1))
        with Dispatch(), Function():
            assert outputs_of(addition) == [(4,)]
        assert ran == []

    def test_gradients_and_defaults_stay_as_they_are(self) -> None:
        replayed("mm", tensor(2, 2), tensor(2, 2))
        assert torch.is_grad_enabled()

    def test_no_memory_is_taken(self) -> None:
        side = 1 << 22  # 64 TiB of fp32
        assert outputs("relu", tensor(side, side)) == [((side, side), "float32")]
        items = (number(f"[{side}, {side}]", "ScalarList"), *[NOTHING] * 4, NOTHING)
        assert outputs("empty", *items) == [((side, side), "float32")]


def outputs_of(arguments: CallArguments) -> list[tuple[int, ...]]:
    (one,) = replay([arguments])
    assert one.effects is not None
    return [output.shape for output in one.effects.outputs]


class TestAgainstRealRuns:
    """Calls recorded by the profiler on this machine: replays give what ran."""

    PROGRAM: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("aten::mm", lambda: ones(3, 4) @ ones(4, 5)),
        ("aten::cumsum", lambda: ones(3, 4).cumsum(1)),
        ("aten::topk", lambda: ones(3, 40).topk(7)),
        ("aten::_softmax", lambda: ones(3, 4).to(torch.bfloat16).softmax(0)),
        (
            "aten::native_group_norm",
            lambda: torch.native_group_norm(ones(2, 6, 4), None, None, 2, 6, 4, 3, 0.1),
        ),
        ("aten::upsample_nearest2d", lambda: torch.nn.Upsample(scale_factor=2.5)(ones(1, 1, 4, 4))),
        ("aten::sort", lambda: ones(5, 6).t().sort(0)),
        ("aten::linalg_qr", lambda: torch.linalg.qr(ones(5, 3))),
        ("aten::bitwise_and", lambda: ones(4, dtype=torch.int64) & ones(4, dtype=torch.bool)),
        ("aten::div", lambda: ones(4, dtype=torch.int32) / 3),
        ("aten::_foreach_sqrt", lambda: torch._foreach_sqrt([ones(3), ones(2, 2)])),
        ("aten::gather", lambda: ones(4, 5).gather(1, torch.zeros(4, 2, dtype=torch.int64))),
        ("aten::where", lambda: torch.where(ones(3, 1) > 0, ones(4), 1.0)),
        ("aten::argmax", lambda: ones(3, 4).argmax(1, keepdim=True)),
        ("aten::cdist", lambda: torch.cdist(ones(2, 3, 4), ones(2, 5, 4), p=1.0)),
    )  # fmt: skip

    def test_replays_give_what_ran(self, tmp_path: Any) -> None:
        from torch.profiler import ProfilerActivity, profile

        results = []
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for name, run in self.PROGRAM:
                with torch.profiler.record_function(f"here {name}"):
                    results.append(run())
        file = tmp_path / "trace.json"
        profiler.export_chrome_trace(str(file))
        recorded = first_calls(json.loads(file.read_text())["traceEvents"])
        for (name, _), result in zip(self.PROGRAM, results, strict=True):
            (one,) = replay([with_list_type(recorded[name], "float")])
            assert one.effects is not None, (name, one.reason)
            tensors = result if isinstance(result, (tuple, list)) else [result]
            assert [(output.shape, output.type_name) for output in one.effects.outputs] == [
                (tuple(value.shape), str(value.dtype).removeprefix("torch.")) for value in tensors
            ], name


def first_calls(events: list[dict[str, Any]]) -> dict[str, CallArguments]:
    """By name of the range `here NAME`, the first call of NAME in it."""
    ranges = {
        event["name"].removeprefix("here "): (event["ts"], event["ts"] + event["dur"])
        for event in events
        if str(event.get("name", "")).startswith("here ") and "dur" in event
    }
    found: dict[str, CallArguments] = {}
    for event in events:
        begin, end = ranges.get(event.get("name", ""), (0, -1))
        if event.get("cat") == "cpu_op" and begin <= event["ts"] <= end:
            found.setdefault(
                event["name"],
                parse_arguments(
                    event["name"],
                    shapes=event["args"]["Input Dims"],
                    types=event["args"]["Input type"],
                    strides=event["args"]["Input Strides"],
                    concrete=event["args"]["Concrete Inputs"],
                ),
            )
    return found


NAMES = """
    add mm bmm addmm sum softmax _softmax convolution native_layer_norm copy_ fill_ arange cat index gather
    embedding scatter_ topk sort _fused_adamw_ _foreach_mul_ empty full view as_strided unfold resize_ repeat
    _scaled_dot_product_flash_attention_for_cpu max_pool2d_with_indices linalg_qr einsum to _to_copy randint
"""
TYPES = ("float", "long int", "bool", "Quaternion", "c10::Half")
VALUES = ("", "1", "-1", "True", "[0]", "[1, 2]", "nan", "1e400", "[[", "9" * 30, "6")
SIZES = st.lists(st.integers(-2, 1 << 40) | st.integers(0, 8), max_size=4)
EMPTY = st.just([])
ITEMS = st.one_of(
    st.tuples(SIZES, st.sampled_from(TYPES), SIZES, st.just("")),
    st.tuples(EMPTY, st.sampled_from(("Scalar", "ScalarList", "")), EMPTY, st.sampled_from(VALUES)),
    st.tuples(st.lists(SIZES, max_size=3), st.just("TensorList"), st.lists(SIZES, max_size=3), st.just("")),
)


@settings(max_examples=300)
@given(
    st.sampled_from(NAMES.split()),
    st.lists(ITEMS, max_size=8),
    st.sampled_from((None, "", "Tensor", "out", "dim")),
)
def test_hostile_recordings_have_a_reason(name: str, items: list[Item], overload: str | None) -> None:
    one = replayed(name, *items, overload=overload)
    assert (one.effects is None) == (one.reason is not None)
