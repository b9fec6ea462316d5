from __future__ import annotations

import pytest

from opscope.model.location import FrameName, is_program_file, parse_frame

OWN = [
    "train.py",
    "mypackage/model.py",
    "./train.py",
    "/home/me/project/train.py",
    "C:\\work\\train.py",
    "/home/me/lib/model.py",
    "<stdin>",
    "<ipython-input-3-5f2c>",
    "/tmp/ipykernel_71/1234.py",
    "distributed/run.py",
    "/home/me/bin/train.py",
]
LIBRARY = [
    "torch/nn/modules/linear.py",
    "transformers/models/bert/modeling_bert.py",
    "enum.py",
    "asyncio/events.py",
    "distutils/core.py",
    "six.py",
    "/usr/lib/python3.10/threading.py",
    "/opt/venv/lib/python3.12/site-packages/mine/model.py",
    "/usr/lib/python3/dist-packages/numpy/core.py",
    "C:\\Python310\\Lib\\enum.py",
    "C:\\env\\Lib\\site-packages\\torch\\_tensor.py",
    "<frozen importlib._bootstrap>",
    "<string>",
    "/usr/local/bin/torchrun",
    "<eval_with_key>.3",
    "/tmp/torchinductor_me/ab/cabcd.py",
]


@pytest.mark.parametrize("file", OWN)
def test_files_of_the_program(file: str) -> None:
    assert is_program_file(file)


@pytest.mark.parametrize("file", LIBRARY)
def test_files_of_libraries(file: str) -> None:
    assert not is_program_file(file)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("train.py(40): <module>", ("train.py", 40, "<module>")),
        ("C:\\Program Files (x86)\\a.py(7): f", ("C:\\Program Files (x86)\\a.py", 7, "f")),
        ("a.py(3): <lambda>", ("a.py", 3, "<lambda>")),
        ("a (1).py(3): f", ("a (1).py", 3, "f")),
    ],
)
def test_a_frame_is_parsed(name: str, parts: tuple[str, int, str]) -> None:
    assert parse_frame(name) == FrameName(*parts)


@pytest.mark.parametrize(
    "name", ["<built-in function len>", "nn.Module: Linear_0", "", "a.py(99999999999999999999): f"]
)
def test_what_is_no_function_of_python(name: str) -> None:
    assert parse_frame(name) is None
