"""Windows along a side of an image."""

from __future__ import annotations

import pytest

from opscope.launches.images import window_sizes


@pytest.mark.parametrize(
    ("sizes", "rounds_up", "windows"),
    [  # size, kernel, stride, padding, dilation
        ((56, 3, 2, 1, 1), False, 28),
        ((56, 2, 2, 0, 1), False, 28),
        ((7, 3, 2, 0, 1), False, 3),
        ((8, 3, 2, 0, 1), True, 4),
        ((5, 2, 4, 0, 1), True, 2),
        ((4, 2, 4, 1, 1), True, 2),
        ((4, 2, 5, 1, 1), True, 1),  # a second window would begin in the padding
        ((30, 3, 1, 0, 2), False, 26),
        ((2, 3, 1, 0, 1), False, 0),
    ],
)
def test_windows_along_a_side(sizes: tuple[int, ...], rounds_up: bool, windows: int) -> None:
    assert window_sizes(*[(one,) for one in sizes], rounds_up=rounds_up) == (windows,)
