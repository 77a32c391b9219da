"""Laws of growth: recovered from toy texts whose laws are known, refused where they are not, and those of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from refattn.backend import load
from refattn.catalogue import ROWS
from refattn.errors import OptionError
from refattn.ops import attend
from refattn.patterns import Local
from refattn.verify import growth, growth_patterns
from refattn.verify.forms import FORMS, derive, form
from refattn.verify.sizes import shapes

D = 8
POWERS_OF_FOUR = [{"n": 4**k} for k in range(1, 11)]
Text = Callable[[Any, Any, dict[str, int]], Any]


def linear(xp: Any, x: Any, at: dict[str, int]) -> Any:
    """q (kᵀ v): n·d multiply-adds for each feature, twice."""
    return xp.matmul(x, xp.matmul(xp.matrix_transpose(x), x))


def doubling(xp: Any, x: Any, at: dict[str, int]) -> Any:
    """log₂ n rounds over whole arrays."""
    for _ in range(at["n"].bit_length() - 1):
        x = xp.matmul(x, xp.zeros((D, D)))
    return x


def strided(xp: Any, x: Any, at: dict[str, int]) -> Any:
    """√n blocks of √n, each against itself."""
    root = round(at["n"] ** 0.5)
    x = xp.reshape(x, (root, root, D))
    return xp.matmul(x, xp.matrix_transpose(x))


def full(xp: Any, x: Any, at: dict[str, int]) -> Any:
    return xp.matmul(xp.matmul(x, xp.matrix_transpose(x)), x)


def windowed(xp: Any, x: Any, at: dict[str, int]) -> Any:
    """n/w blocks of w, each against itself."""
    x = xp.reshape(x, (at["n"] // at["w"], at["w"], D))
    return xp.matmul(x, xp.matrix_transpose(x))


def pooled(xp: Any, x: Any, at: dict[str, int]) -> Any:
    """Every query against n/b means of b keys."""
    means = xp.sum(xp.reshape(x, (at["n"] // at["b"], at["b"], D)), axis=1) / at["b"]
    return xp.matmul(x, xp.matrix_transpose(means))


WIDTHS = [{"n": 4**k, "w": 4**j} for k in range(3, 11) for j in (1, 2, 3)]
POOLS = [{"n": 4**k, "b": 4**j} for k in range(3, 11) for j in (1, 2, 3)]
BY_WIDTH = [*FORMS, form("w", w=1), form("n·w", n=1, w=1), form("w²", w=2), form("n/w", n=1, w=-1)]
BY_POOL = [*FORMS, form("b", b=1), form("n·b", n=1, b=1), form("n/b", n=1, b=-1), form("n²/b", n=2, b=-1)]


def counted(text: Text, sizes: list[dict[str, int]], count: str = "macs") -> list[tuple[dict[str, int], int]]:
    points = []
    for at in sizes:
        reading = load("counting")
        text(reading.xp, reading.shaped((at["n"], D)), at)
        points.append((at, getattr(reading.tally, count)))
    return points


@pytest.mark.parametrize(
    ("text", "count", "sizes", "forms", "law"),
    [
        (linear, "macs", POWERS_OF_FOUR, FORMS, "128·n"),
        (doubling, "macs", POWERS_OF_FOUR, FORMS, "64·n·log n"),
        (strided, "macs", POWERS_OF_FOUR, FORMS, "8·n·√n"),
        (full, "macs", POWERS_OF_FOUR, FORMS, "16·n²"),
        (full, "moved", POWERS_OF_FOUR, FORMS, "2·n² + 32·n"),
        (doubling, "moved", POWERS_OF_FOUR, FORMS, "16·n·log n + 128·log n"),
        (windowed, "macs", WIDTHS, BY_WIDTH, "8·n·w"),
        (pooled, "macs", POOLS, BY_POOL, "8·n²/b"),
        (pooled, "moved", POOLS, BY_POOL, "n²/b + 16·n + 32·n/b"),
        (lambda xp, x, at: xp.sort(x, axis=0), "compares", POWERS_OF_FOUR, FORMS, "8·n·log n"),
        (lambda xp, x, at: x, "macs", POWERS_OF_FOUR, FORMS, "0"),
    ],
)
def test_the_law_of_a_toy_text_is_found_exactly(
    text: Text, count: str, sizes: list[dict[str, int]], forms: Any, law: str
) -> None:
    points = counted(text, sizes, count)
    found = derive(points, forms)
    print(f"{getattr(text, '__name__', text)} {count}: {found}, {found.solved} sizes and {found.held} more")
    assert str(found) == law
    assert found.solved == len(forms)
    assert found.held >= 2
    assert found.drift == 0.0
    assert all(count == pytest.approx(found.real(at), rel=1e-12) for at, count in points)


def test_a_small_quadratic_part_is_not_overlooked() -> None:
    def sly(xp: Any, x: Any, at: dict[str, int]) -> None:
        doubling(xp, x, at)
        ends = x[:: max(at["n"] // 64, 1), :1]  # 64 rows at large n: their square is a constant
        xp.matmul(ends, xp.matrix_transpose(ends))
        xp.matmul(x[:, :1], xp.zeros((1, max(at["n"] // 4096, 0))))

    sizes = [{"n": 4**k} for k in range(6, 11)] + [{"n": 2 * 4**k} for k in range(6, 10)] + [{"n": 3 * 4**k} for k in (6, 7)]
    points = counted(sly, sorted(sizes, key=lambda at: at["n"]))
    made = growth.claim("sly: multiply-adds", "n·log n", "planted", points, [f for f in FORMS if "√" not in f.name])
    assert made.measured.startswith("(1/4096)·n² + 64·n·log n + 4,096, identically")
    assert (made.holds, made.as_stated) == (False, False)


@pytest.mark.parametrize("law", [f.name for f in FORMS])
def test_a_law_that_is_not_in_the_list_is_no_law_of_the_list(law: str) -> None:
    points = [({"n": 2**k}, round(5 * 2 ** (5 * k / 3))) for k in range(2, 21)]
    made = growth.claim("five thirds", law, "planted", points)
    assert not made.holds
    assert "a fit: off by up to" in str(made.measured)


def test_one_wrong_count_breaks_an_identity_wherever_it_is() -> None:
    points = counted(strided, POWERS_OF_FOUR)
    for at, (sizes, count) in enumerate(points):
        wrong = [*points[:at], (sizes, count + 1), *points[at + 1 :]]
        found = derive(wrong)
        assert found.since == points[1][0] if at == 0 else found.solved == 0


def test_a_fit_stands_for_its_form_if_the_ratio_settles() -> None:
    points = [({"n": 2**k}, 2**k * -(-(2**k) // 7)) for k in range(2, 21)]  # n·⌈n/7⌉
    made = growth.claim("rounded up", "n²", "planted", points)
    assert made.holds
    assert made.measured.startswith("0.142858·n², a fit: off by up to 0.00% from n = 262,144 to n = 1,048,576")
    assert not growth.claim("rounded up", "n·√n", "planted", points).holds


def test_too_few_sizes_and_unknown_laws_are_refused() -> None:
    points = counted(linear, POWERS_OF_FOUR)
    with pytest.raises(OptionError, match=r"8 sizes can't tell 7 forms .* give 9 sizes where all are whole numbers"):
        derive(points[:8])
    with pytest.raises(OptionError, match="10 sizes can't tell 8 forms"):
        derive(points, [*FORMS, form("2n", n=1)])
    with pytest.raises(OptionError, match="'n³' is none of the forms 1, log n, √n, n,"):
        growth.claim("linear", "n³", "planted", points)


def test_shapes_grow_as_drawn_ones(row: Any, variant: Any) -> None:
    wanted = {x: 2 * size + (0 if x in "hg" else 3) for x, size in variant.sizes.items()}
    drawn = row.draw(type(variant)(variant.scheme, wanted, variant.given), 1)
    found = shapes(row, variant, **wanted)
    assert [None if x is None else x.shape for x in drawn] == list(found)


def test_a_size_that_does_not_exist_and_an_axis_that_is_a_product_are_refused() -> None:
    row = ROWS[0]
    with pytest.raises(OptionError, match="dense has no size called x; it has b, h, g, n, m, d, e"):
        shapes(row, row.variants[0], x=3)
    flat = type(row)("flat", row.variants, lambda v, s: _merged(row.draw(v, s)), row.tags, row.paper)
    with pytest.raises(OptionError, match=r"flat: q has shape \(\d+, .* no sum of multiples"):
        shapes(flat, row.variants[0], n=10)


def _merged(inputs: Any) -> Any:
    return inputs._replace(q=inputs.q.reshape(-1, *inputs.q.shape[-2:]))


@pytest.fixture(scope="module")
def claims() -> tuple[Any, ...]:
    return growth.run()


def test_the_catalogue_grows_as_stated_and_all_of_it_identically(claims: tuple[Any, ...]) -> None:
    assert all(row.growth for row in ROWS)
    assert len(claims) == sum(len(row.growth) for row in ROWS) + len(growth_patterns.STATED)
    for claim in claims:
        print(claim)
        assert claim.holds
        assert ", identically: " in claim.measured
        assert "to n = 1,048,576" in claim.measured or claim.name.endswith(": pairs seen")
    found = {claim.name: claim.measured.partition(",")[0] for claim in claims}
    assert found["dense: multiply-adds of forward"] == "128·n²"
    assert found["dense: multiply-adds of vjp"] == "320·n²"
    assert found["dense: exponentials of forward"] == "n²"
    assert found["dense: elements saved"] == "65·n"


def test_patterns_grow_as_their_papers_say(claims: tuple[Any, ...]) -> None:
    found = {claim.name.removesuffix(": pairs seen"): claim for claim in claims}
    laws = {name: found[name].measured.partition(",")[0] for name in (s.name for s in growth_patterns.STATED)}
    assert laws == {
        "SparseTransformer.strided(√n)": "(3/2)·n·√n − n + (1/2)·√n",
        "SparseTransformer.fixed(√n)": "n·√n",
        "CCNet.criss_cross(√n, √n)": "2·n·√n − n",
        "LogTrans.formula()": "n·log n + 1",
        "Longformer.sliding(w)": "2·n·w + n − w² − w",
        "LocalBlocks.own(b)": "(1/2)·n·b + (1/2)·n",
        "BigBird.itc(b, 3, 'multiset')": "10·n·b − 18·b²",
        "BlockBERT: Split(blocks)": "n²/blocks",
    }
    assert {s.law for s in growth_patterns.STATED} == {"n·√n", "n·log n", "n·w", "n·b", "n²/blocks"}


def test_a_pattern_with_one_key_too_many_a_row_has_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    window = next(s for s in growth_patterns.STATED if s.law == "n·w")
    wrong = replace(window, make=lambda at: Local(at["w"], at["w"] + at["n"] // 512))
    monkeypatch.setattr(growth_patterns, "STATED", (wrong,))
    (claim,) = growth_patterns.pattern_claims()
    assert not claim.as_stated


def test_every_variant_grows_as_its_row(row: Any, variant: Any) -> None:
    claims = growth.row_claims(row, variant, blocked=False)
    if getattr(variant.scheme, "projection", "linear") != "linear":  # segments of a length: the slots grow with n
        assert [claim.name for claim in claims if claim.holds] == ["linformer: elements saved"]
        assert all("·n²" in claim.measured for claim in claims if not claim.holds)
        return
    if "is_global" in variant.given:  # who is a member is seen in the values: the text looks at every pair
        assert all(claim.holds or "n²" in claim.measured for claim in claims), [claim.measured for claim in claims]
        assert not claims[0].holds
        return
    for claim in claims:
        assert claim.holds, claim


def test_a_row_without_statements_is_refused() -> None:
    row = ROWS[0]
    with pytest.raises(OptionError, match="nothing is stated about the growth of other"):
        growth.run([type(row)("other", row.variants, row.draw, row.tags, row.paper)])


def test_a_text_that_ignores_its_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "blocks", lambda n, block: [slice(0, n)])
    found = {claim.name: claim for claim in growth.run()}
    peak = found["dense: peak elements of forward, 4096 rows at a time"]
    assert not peak.as_stated
    assert peak.measured.startswith("3·n² + n, identically")
    assert found["dense: multiply-adds of forward"].as_stated
