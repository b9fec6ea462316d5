"""Backward nodes that no derivatives.yaml names: they are written by hand in PyTorch's autograd."""

from __future__ import annotations

from opscope.provenance.operators.native_function import Derivative

__all__ = ["SPECIAL_NODES"]


def _node(name: str, description: str, *forward: str) -> Derivative:
    return Derivative(node=name, forward=forward, description=description)


# Source: torch/csrc/autograd/functions/{accumulate_grad,tensor,basic_ops,comm}.h;
# torch/_functorch/_aot_autograd/runtime_wrappers.py.
SPECIAL_NODES = {
    node.node: node
    for node in (
        _node("torch::autograd::AccumulateGrad", "adds the gradient of a leaf tensor to its .grad"),
        _node("torch::autograd::CopyBackwards", "gradient of a copy between tensors", "aten::copy_"),
        _node("torch::autograd::CopySlices", "gradient of an in-place operator on a view of its base"),
        _node("torch::autograd::GraphRoot", "start of the backward pass: hands out the given gradients"),
        _node("torch::autograd::UndefinedGrad", "passes undefined gradients on"),
        _node("torch::autograd::UndefinedGradBackward", "passes undefined gradients on"),
        _node("torch::autograd::Identity", "passes gradients on"),
        _node("torch::autograd::Scatter", "splits a tensor over devices"),
        _node("torch::autograd::Gather", "joins tensors of several devices"),
        _node("CompiledFunctionBackward", "backward graph that torch.compile compiled"),
    )
}
