"""Axis letters, blocks and products."""

from __future__ import annotations

import pytest

from refattn import ShapeError
from refattn.shapes import blocks, broadcasts, product, shape_of, sizes


def test_letters_are_bound_once():
    assert sizes({"q": "* n d", "k": "* m d"}, {"q": (2, 3, 4), "k": (2, 5, 4)}) == {"n": 3, "d": 4, "*": (2,), "m": 5}
    with pytest.raises(ShapeError, match=r"q has d=4 but k has d=6; q: \(3, 4\), k: \(5, 6\)"):
        sizes({"q": "n d", "k": "m d"}, {"q": (3, 4), "k": (5, 6)})
    with pytest.raises(ShapeError, match=r"q has shape \(3,\), but needs the axes \(n, d\)"):
        sizes({"q": "n d"}, {"q": (3,)})
    with pytest.raises(ShapeError, match=r"leading axes=\(2,\) but k has leading axes=\(3,\)"):
        sizes({"q": "* d", "k": "* d"}, {"q": (2, 4), "k": (3, 4)})


@pytest.mark.parametrize(("n", "block"), [(0, 3), (0, None), (1, 3), (7, 3), (6, 3), (5, None), (5, 100)])
def test_blocks_cover_every_index_once(n, block):
    found = [i for at in blocks(n, block) for i in range(n)[at]]
    assert found == list(range(n))
    assert len(blocks(n, block)) == max(1, -(-n // (block or max(n, 1))))


def test_broadcasting_is_checked_from_the_right():
    assert broadcasts("x", (1, 4), (2, 3, 4), "b, n, m") is None
    with pytest.raises(ShapeError, match=r"x has shape \(2, 4\), which does not broadcast to \(b, n, m\) = \(2, 3, 4\)"):
        broadcasts("x", (2, 4), (2, 3, 4), "b, n, m")
    with pytest.raises(ShapeError, match="does not broadcast"):
        broadcasts("x", (1, 1, 1, 1), (2, 3, 4), "b, n, m")


def test_products_of_nothing_are_one_and_shapes_are_integers():
    assert product(()) == 1
    assert product((2, 0, 3)) == 0
    assert shape_of((2, 3)) == (2, 3)
