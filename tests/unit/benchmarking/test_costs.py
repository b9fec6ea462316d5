"""Least bytes, operations and memory of a call."""

from collections import OrderedDict
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from opscope.benchmarking.inputs import (  # noqa: E402
    count_flops,
    map_tensors,
    min_bytes,
    named_tensors,
)


class TestMinBytes:
    def test_inputs_are_read_once_also_if_given_twice_and_outputs_written_once(self):
        x, weight = torch.randn(100, 10), torch.randn(10, dtype=torch.float64)
        assert min_bytes((x, weight), (torch.empty(100),)) == 4000 + 80 + 400
        x = torch.randn(100)
        assert min_bytes((x, x, x.view(10, 10)), torch.empty(100)) == 800

    @pytest.mark.parametrize(
        ("shape", "views", "size_bytes"),
        [
            ((30, 40), lambda x: (x.t(),), 4800),
            ((30, 40), lambda x: (x[:, ::2],), 2400),
            ((30, 40), lambda x: (x[0],), 160),
            ((30, 40), lambda x: (x[:1].expand(1000, 40),), 160),
            ((30, 40), lambda x: (x[0].unfold(0, 5, 1),), 160),
            ((30, 40), lambda x: (x[:0],), 0),
            (1000, lambda x: (x[:600], x[400:]), 4000),  # overlapping
            (1000, lambda x: (x[::2], x[1::2]), 4000),  # interleaved
            (1000, lambda x: (x[:100], x[900:]), 800),  # apart
            (1000, lambda x: (x[::2], x[::2]), 2000),  # equal, with gaps
        ],
    )
    def test_views_are_what_they_address_once(self, shape, views, size_bytes):
        assert min_bytes(views(torch.randn(shape)), None) == size_bytes

    def test_views_and_what_is_no_tensor_have_no_bytes_of_their_own(self):
        x = torch.randn(100)
        assert min_bytes((x,), x[:50]) == 400
        assert min_bytes(({"x": [torch.randn(10)]}, 3, "mode", None), OrderedDict(y=torch.randn(10))) == 80
        dense = torch.zeros(100)
        dense[:3] = 1
        assert min_bytes((dense.to_sparse(),), None) == 3 * (8 + 4)


class TestCountFlops:
    def test_products_are_counted_and_elementwise_work_is_unknown(self):
        assert count_flops(torch.mm, (torch.randn(3, 5), torch.randn(5, 7))) == 2 * 3 * 5 * 7
        assert count_flops(torch.exp, (torch.randn(10),)) is None

        def broken(x):
            raise RuntimeError("no")

        assert count_flops(broken, (torch.randn(8),)) is None

    def test_a_function_never_sees_tensors_without_data(self):
        """A kernel that is launched on their null pointers would end the process's use of the device."""
        seen = []

        def product(x):
            seen.append(x.device.type)
            return x @ x

        assert count_flops(product, (torch.randn(64, 64),)) == 2 * 64**3
        assert seen == ["cpu"]

    def test_a_compiled_function_is_counted_as_it_was_written_and_stays_compiled(self):
        runs = []

        def backend(graph, inputs):
            def run(*arguments):
                runs.append(1)
                return graph.forward(*arguments)

            return run

        compiled = torch.compile(torch.mm, backend=backend)

        def product(a, b):
            return compiled(a, b)

        matrices = torch.eye(4), torch.eye(4)
        product(*matrices)
        assert count_flops(product, matrices) == 128
        assert len(runs) == 1
        product(*matrices)
        assert len(runs) == 2


def test_dataclasses_are_walked_too():
    @dataclass(frozen=True)
    class Batch:
        x: torch.Tensor
        lengths: list[torch.Tensor]
        name: str = "batch"

    batch = Batch(torch.ones(2), [torch.ones(3)])
    assert [place for place, _ in named_tensors(batch)] == [".x", ".lengths[0]"]
    assert map_tensors(lambda tensor: tensor * 2, batch).lengths[0].sum() == 6
