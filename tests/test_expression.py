"""Schemes as text: what is read, what is refused, and where the caret stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from refattn.catalogue import ROWS, constructors
from refattn.errors import OptionError
from refattn.expression import parse, written
from refattn.patterns import All, Alternate, Causal, Heads
from refattn.schemes.dense import Dense


@dataclass(frozen=True)
class Set:
    """A pattern stand-in, whose operators build a term that can be read back."""

    left: int = 0
    inner: Any = None
    seed: str | None = None

    @classmethod
    def total(cls, width: int) -> Set:
        return cls(width)

    @classmethod
    def _hidden(cls) -> Set:
        return cls()

    def method(self) -> Set:
        return self

    def __or__(self, other: Any) -> tuple[str, Any, Any]:
        return NotImplemented if not isinstance(other, Set) else Term("|", self, other)

    def __and__(self, other: Any) -> tuple[str, Any, Any]:
        return Term("&", self, other)

    def __add__(self, other: Any) -> tuple[str, Any, Any]:
        return Term("+", self, other)

    def __invert__(self) -> tuple[str, Any]:
        return Term("~", self, None)


@dataclass(frozen=True)
class Term(Set):
    sign: str = ""
    one: Any = None
    two: Any = None

    def __init__(self, sign: str, one: Any, two: Any) -> None:
        for name, x in (("sign", sign), ("one", one), ("two", two)):
            object.__setattr__(self, name, x)


NAMES = {"Dense": Dense, "Set": Set}
PATTERNS = {"Heads": Heads, "Alternate": Alternate, "Causal": Causal, "All": All}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Dense()", Dense()),
        ("  Dense(causal=True,\n align='bottom_right')  ", Dense(causal=True, align="bottom_right")),
        ("Dense(True, 'top_left', 2)", Dense(True, "top_left", 2)),
        ("Dense(scale=-.5)", Dense(scale=-0.5)),
        ("Dense(scale=None, softcap=5e1)", Dense(softcap=50.0)),
        ("Dense.conventions['jax']", Dense.conventions["jax"]),
        ("Set(inner=(1, -2, (Dense(), 'x'), ()))", Set(inner=(1, -2, (Dense(), "x"), ()))),
        ("Set.total(7)", Set(7)),
        ("Set.total(width=7)", Set(7)),
        ("Set(1) | Set(2) & ~Set(3)", Term("|", Set(1), Term("&", Set(2), Term("~", Set(3), None)))),
        ("Set(1) + Set.total(2)", Term("+", Set(1), Set(2))),
        ("3", 3),
        ("Heads((Causal(), All())).at(1)", All()),
        ("Alternate((Causal(), All())).at(2)", Causal()),
        ("Alternate((Causal(), All())).at(layer=1)", All()),
        ("(Causal() | Heads((Causal(), All()))).at(head=1)", Causal() | All()),
        ("Set(inner=Heads((Causal(),)).at(0))", Set(inner=Causal())),
    ],
)
def test_what_an_expression_means(text: str, value: Any) -> None:
    assert parse(text, NAMES | PATTERNS) == value


@pytest.mark.parametrize(
    ("text", "marked", "said"),
    [
        ("Dense(casual=True)", "casual", "did you mean 'causal'?\n"),
        ("Dense(casual=True)", "casual", "\nfields: causal, align, scale, softcap, keep_rate, heads, empty"),
        ("dense()", "dense", "nothing is called 'dense'; did you mean 'Dense'?"),
        ("Zzz()", "Zzz", "nothing is called 'Zzz'\n"),
        ("Zzz()", "Zzz", "\nthere is: Dense, Set"),
        ("Dense(causal=True, align='botom')", "Dense(causal=True, align='botom')", "choose None, 'top_left' or"),
        ("Dense(causal='no')", "'no'", "causal='no' must be True or False"),
        ("Dense(causal=1)", "1", "causal=1 must be True or False"),
        ("Dense(False, None, 'x')", "'x'", "scale='x' must be a number or None"),
        ("Dense(scale=True)", "True", "scale=True must be a number or None"),
        ("Dense(softcap=-1)", "Dense(softcap=-1)", "must be positive"),
        ("Dense(1,2,3,4,5,6,7,8)", "Dense(1,2,3,4,5,6,7,8)", "too many positional arguments"),
        ("Dense(True, causal=True)", "Dense(True, causal=True)", "multiple values"),
        ("Dense(causal=True, causal=True)", "causal=True", "causal is given twice"),
        ("Dense(*(True,))", "*(True,)", "stars are not read"),
        ("Dense(**{})", "**{}", "stars are not read"),
        ("Dense", "Dense", "Dense is a constructor: write Dense(...)"),
        ("Set.total", "Set.total", "write Set.total(...)"),
        ("Set.total()", "Set.total()", "missing a required argument: 'width'"),
        ("Set.total('7')", "'7'", "width='7' must be a whole number"),
        ("Set.totall(7)", "Set.totall", "did you mean 'total'?"),
        ("Set.method()", "Set.method", "no named constructor 'method'"),
        ("Set._hidden()", "Set._hidden", "no named constructor '_hidden'"),
        ("Dense.forward()", "Dense.forward", "it has: conventions['torch']"),
        ("Dense.__init__()", "Dense.__init__", "no named constructor"),
        ("Dense.conventions['jaxx']", "'jaxx'", "did you mean 'jax'?"),
        ("Dense.conventions[0]", "0", "no convention 0"),
        ("Set.conventions['a']", "'a'", "conventions: (none)"),
        ("Dense()['a']", "Dense()['a']", "only X.conventions['name'] takes brackets"),
        ("Dense().forward", "Dense().forward", "only constructors can be called"),
        ("Dense()()", "Dense()", "only constructors can be called"),
        ("Set(left=2**9)", "2**9", "this can't stand here"),
        ("Set(left=1+2)", "1+2", "+ joins what constructors make, not int and int"),
        ("Set(left=-True)", "-True", "a minus belongs to a number"),
        ("Set(inner=-Set())", "-Set()", "a minus belongs to a number"),
        ("~3", "~3", "~ joins what constructors make"),
        ("Dense() | Set()", "Dense() | Set()", "| has no meaning for Dense and Set"),
        ("Set(inner=[1])", "[1]", "this can't stand here"),
        ("Set(inner=1j)", "1j", "this can't stand here"),
        ("Set(inner=(lambda: 1))", "lambda: 1", "this can't stand here"),
        ("Set(inner=__import__('os').system('x'))", "__import__('os').system", "only constructors can be called"),
        ("Set(seed='é×', lft=1)", "lft", "did you mean 'left'?"),
        ("Set().at(1)", "Set().at(1)", ".at(...) picks from Alternate and Heads, not from Set"),
        ("Heads((Causal(),)).at(1)", "1", "head=1 must be at most 0"),
        ("Heads((Causal(),)).at('x')", "'x'", "head='x' must be a whole number"),
        ("Heads((Causal(),)).at()", "Heads((Causal(),)).at()", "Heads.at takes one number, .at(1) or .at(head=1)"),
        ("Heads((Causal(),)).at(0, 1)", "Heads((Causal(),)).at(0, 1)", "Heads.at takes one number"),
        ("Heads((Causal(),)).at(0, head=0)", "Heads((Causal(),)).at(0, head=0)", "Heads.at takes one number"),
        ("Heads((Causal(),)).at(layer=0)", "Heads((Causal(),)).at(layer=0)", "Heads.at takes one number"),
        ("Alternate(Heads((Causal(),)).at(*(0,)),)", "*(0,)", "this can't stand here"),
        ("Heads((Causal(),)).at(**{'head': 0})", "Heads((Causal(),)).at(**{'head': 0})", "Heads.at takes one number"),
        ("Heads((Causal(),)).at(head=5)", "5", "head=5 must be at most 0"),
        ("Heads((Causal(),)).count(1)", "Heads((Causal(),)).count", "only constructors can be called"),
        ("Heads.at(1)", "Heads.at", "no named constructor 'at'"),
        ("Dense(", "(", "this is no expression"),
        ("Dense(causal=)", "(", "this is no expression"),
    ],
)
def test_what_is_refused_and_where_the_caret_stands(text: str, marked: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(text, NAMES | PATTERNS if "Heads" in text else NAMES)
    message = str(caught.value)
    assert said in message
    shown, carets = message.split("\n")[1:3]
    assert shown == f"    {text}"
    start, end = carets.index("^"), carets.rindex("^") + 1
    assert carets[start:end] == "^" * (end - start)
    if "no expression" in said:  # where Python's parser puts it is its own business
        assert end - start == 1
    else:
        assert shown[start:end] == marked


@pytest.mark.parametrize("text", ["", "   ", "Dense(\0)", "(" * 5000, "~" * 100_000 + "Set()"])
def test_text_that_can_not_be_parsed_at_all(text: str) -> None:
    with pytest.raises(OptionError, match="expression"):
        parse(text, NAMES)


def test_text_that_python_would_warn_about_is_refused_without_a_warning() -> None:
    with pytest.raises(OptionError, match="no convention"):
        parse(r"Dense.conventions['\d']", NAMES)


@pytest.mark.parametrize("variant", [v for row in ROWS for v in row.variants], ids=str)
def test_a_scheme_is_read_back_from_what_is_written(variant: Any) -> None:
    text = written(variant.scheme)
    assert parse(text, constructors()) == variant.scheme


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Dense(), "Dense()"),
        (Dense(causal=True, align="top_left", scale=0.5), "Dense(causal=True, align='top_left', scale=0.5)"),
        (Set(inner=(Dense(), 1)), "Set(inner=(Dense(), 1))"),
        (Set(inner=(1,)), "Set(inner=(1,))"),
        (Set(inner=Dense(scale=1)), "Set(inner=Dense(scale=1))"),
    ],
)
def test_what_is_written_is_short(value: Any, text: str) -> None:
    assert written(value) == text
