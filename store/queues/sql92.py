"""SQL92 property filters: RocketMQ's expression language over a message's properties, parsed once and evaluated many times.

Owns the grammar (``sql92.lark``) and its three-valued logic.  Knows property maps, not messages (``sql_filter.py``), frames or queues.
Grammar after RocketMQ's ``filter`` module (differences: docs/reference/sql-filters.md): ``AND OR NOT``, ``= <> > >= < <=``,
``[NOT] BETWEEN``, ``[NOT] IN``, ``IS [NOT] NULL``, ``[NOT] CONTAINS / STARTSWITH / ENDSWITH``, parentheses, signs, comments, and string,
number and boolean literals.  A property is text; next to a number, and where two properties are ordered, it is read as a number, and when
it is none, or is missing, the comparison is unknown (None).  Only an expression that is true lets a message pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from dledger_wire.errors import InvalidArgumentError

Truth = bool | None
Value = str | int | float | bool | None
Properties = Mapping[str, str]
Predicate = Callable[[Properties], Truth]

MAX_EXPRESSION_CHARS = 4096
MAX_DEPTH = 64
MAX_TERMS = 128  # comparisons, and values in lists
SLICE_TOKENS = 50  # some 0.5 ms

# What an error says was expected, for the terminals that may begin or go on something.
_WORDS = {
    "NAME": "a property name",
    "STRING": "a text in quotes",
    "NUMBER": "a number",
    "COMPARISON": "a comparison",
    "_AND": "AND",
    "_OR": "OR",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "_NULL": "NULL",
}

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
_TEXT: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": lambda text, part: text.startswith(part),
    "ENDSWITH": lambda text, part: text.endswith(part),
}
_NO_PARENTHESES = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WHOLE = re.compile(r"[-+]?[0-9]{1,300}")
_DECIMAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TRUTHS = {"true": True, "false": False}


class Operand(Protocol):
    def __call__(self, properties: Properties, /) -> Value: ...


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Value

    def __call__(self, properties: Properties, /) -> Value:
        return self.value


@dataclass(frozen=True, slots=True)
class _Property:
    name: str

    def __call__(self, properties: Properties, /) -> Value:
        return properties.get(self.name)


@dataclass(frozen=True, slots=True)
class _Minus:
    operand: Operand

    def __call__(self, properties: Properties, /) -> Value:
        value = self.operand(properties)
        number = _number(value) if isinstance(value, str) else value
        return None if number is None or isinstance(number, bool) else -number


@dataclass(frozen=True, slots=True)
class _Truth:
    """An operand that stands alone."""

    operand: Operand

    def __call__(self, properties: Properties, /) -> Truth:
        found = self.operand(properties)
        return found if isinstance(found, bool) else None if found is None else _TRUTHS.get(str(found).lower())


@dataclass(frozen=True, slots=True)
class _Negation:
    part: Predicate

    def __call__(self, properties: Properties, /) -> Truth:
        value = self.part(properties)
        return None if value is None else not value


def _number(text: str) -> int | float | None:
    """Whole numbers stay exact, whatever their size."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else None


def _convert(text: str, like: Value) -> Value:
    return _TRUTHS.get(text.lower()) if isinstance(like, bool) else _number(text)


def _compare(symbol: str, left: Value, right: Value) -> Truth:
    """Text becomes a number beside a number, a truth value beside one; what cannot be compared is unknown.

    Only numbers have an order, so two properties that are ordered are numbers, as in RocketMQ.
    """
    ordered = symbol not in ("=", "<>")
    if isinstance(left, str) and isinstance(right, str):
        if ordered:
            left, right = _number(left), _number(right)
    elif isinstance(left, str):
        left = _convert(left, right)
    elif isinstance(right, str):
        right = _convert(right, left)
    if left is None or right is None or isinstance(left, bool) != isinstance(right, bool):
        return None
    if ordered and isinstance(left, bool):
        return None
    return _ORDER[symbol](left, right)


@v_args(inline=True)
class _Compiler(Transformer):  # type: ignore[type-arg]
    """Turns what was parsed into predicates, bottom up."""

    def any_of(self, *parts: Predicate) -> Predicate:
        def evaluate(properties: Properties, /) -> Truth:
            unknown = False
            for part in parts:
                value = part(properties)
                if value:
                    return True
                unknown = unknown or value is None
            return None if unknown else False

        return evaluate if len(parts) > 1 else parts[0]

    def all_of(self, *parts: Predicate) -> Predicate:
        def evaluate(properties: Properties, /) -> Truth:
            unknown = False
            for part in parts:
                value = part(properties)
                if value is False:
                    return False
                unknown = unknown or value is None
            return None if unknown else True

        return evaluate if len(parts) > 1 else parts[0]

    def negate(self, part: Predicate) -> Predicate:
        return part.part if isinstance(part, _Negation) else _Negation(part)

    def compare(self, left: Operand, symbol: Token, right: Operand) -> Predicate:
        text = str(symbol)
        if text not in ("=", "<>"):
            _refuse_order(symbol, left, right)
        return lambda properties: _compare(text, left(properties), right(properties))

    def between(self, value: Operand, keyword: Token, low: Operand, high: Operand) -> Predicate:
        _refuse_order(keyword, value, low, high)

        def evaluate(properties: Properties, /) -> Truth:
            found = value(properties)
            over, under = _compare(">=", found, low(properties)), _compare("<=", found, high(properties))
            return False if over is False or under is False else None if over is None or under is None else True

        return evaluate

    def not_between(self, value: Operand, keyword: Token, low: Operand, high: Operand) -> Predicate:
        return self.negate(self.between(value, keyword, low, high))

    def contained(self, value: Operand, *choices: _Constant) -> Predicate:
        constants = [choice.value for choice in choices]

        def evaluate(properties: Properties, /) -> Truth:
            found = value(properties)
            answers = [_compare("=", found, constant) for constant in constants]
            return True if True in answers else None if None in answers else False

        return evaluate

    def not_contained(self, value: Operand, *choices: _Constant) -> Predicate:
        return self.negate(self.contained(value, *choices))

    def is_null(self, value: Operand) -> Predicate:
        return lambda properties: value(properties) is None

    def is_not_null(self, value: Operand) -> Predicate:
        return lambda properties: value(properties) is not None

    def text_test(self, value: Operand, name: Token, part: Operand) -> Predicate:
        test = _TEXT[str(name).upper()]

        def evaluate(properties: Properties, /) -> Truth:
            text, wanted = value(properties), part(properties)
            # An empty needle matches nothing, as in RocketMQ.
            return test(text, wanted) if isinstance(text, str) and isinstance(wanted, str) and wanted else None

        return evaluate

    def not_text_test(self, value: Operand, name: Token, part: Operand) -> Predicate:
        return self.negate(self.text_test(value, name, part))

    def truth(self, value: Operand) -> Predicate:
        return _Truth(value)

    def in_parentheses(self, inner: Predicate) -> Operand:
        return inner.operand if isinstance(inner, _Truth) else inner

    def minus(self, value: Operand) -> Operand:
        if isinstance(value, _Constant):
            return _Constant(_Minus(value)({}))
        if isinstance(value, _Minus) and isinstance(value.operand, _Minus):
            return value.operand  # three are one: however many there are, none is evaluated by recursion
        return _Minus(value)

    def plus(self, value: Operand) -> Operand:
        return self.minus(self.minus(value))

    def property_value(self, name: Token) -> Operand:
        return _Property(str(name))

    def string(self, token: Token) -> Operand:
        return _Constant(str(token)[1:-1].replace("''", "'"))

    def number(self, token: Token) -> Operand:
        return _Constant(_number(str(token).rstrip("lL")))

    def true(self, _token: Token) -> Operand:
        return _Constant(True)

    def false(self, _token: Token) -> Operand:
        return _Constant(False)


def _refuse_order(symbol: Token, *operands: Operand) -> None:
    """Only numbers have an order, as in RocketMQ."""
    for operand in operands:
        if isinstance(operand, _Constant) and isinstance(operand.value, str | bool):
            column = (symbol.start_pos or 0) + 1
            raise _error(column, f"{str(symbol).upper()} compares numbers, {operand.value!r} is none")


def _error(column: int, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"filter: column {column}: {what}", column=column)


@lru_cache(maxsize=1)
def parser() -> Lark:
    """Made once in a process, which takes longer than any expression: before requests come."""
    return Lark.open("sql92.lark", rel_to=__file__, parser="lalr", transformer=_Compiler(), maybe_placeholders=False)


def parse(expression: str) -> Predicate:
    """As ``parse_in_slices``, at once."""
    parsing = parse_in_slices(expression)
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            predicate: Predicate = end.value
            return predicate


def parse_in_slices(expression: str) -> Generator[None, None, Predicate]:
    """Parse; pauses after every slice.  InvalidArgumentError points at the column, also in its detail ``column``."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise InvalidArgumentError(f"filter: {len(expression)} characters, expected at most {MAX_EXPRESSION_CHARS}")
    if _nesting(expression) > MAX_DEPTH:
        raise InvalidArgumentError(f"filter: parentheses nested deeper than {MAX_DEPTH}")
    going, kinds, last = parser().parse_interactive(expression), Counter[str](), None
    try:
        for number, last in enumerate(going.iter_parse(), 1):
            kinds[last.type] += 1
            if number % SLICE_TOKENS == 0:
                _check_terms(kinds)
                yield
        _check_terms(kinds)
        predicate: Predicate = going.feed_eof(last)  # type: ignore[no-untyped-call]
    except UnexpectedToken as error:
        error.interactive_parser = going
        raise _explained(expression, error) from None
    except UnexpectedInput as error:
        raise _explained(expression, error) from None
    return predicate


def _check_terms(kinds: Counter[str]) -> None:
    terms = 1 + kinds["_OR"] + kinds["_AND"] - kinds["BETWEEN"] + kinds["COMMA"]
    if terms > MAX_TERMS:
        raise InvalidArgumentError(f"filter: more than {MAX_TERMS} comparisons and values in lists; expected fewer, or several readers")


def _nesting(expression: str) -> int:
    """How deep its parentheses are nested; those in texts and comments are none."""
    depth = deepest = 0
    for character in _NO_PARENTHESES.sub("", expression):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _explained(expression: str, error: UnexpectedInput) -> InvalidArgumentError:
    wanted = [word for name, word in _WORDS.items() if name in _expected(error)]
    hint = f"; expected {', '.join(wanted)}" if wanted else ""
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return _error(len(expression) + 1, f"the expression ends too early{hint}")
    at = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters) and expression[at] == "'":
        return _error(at + 1, "a text without its closing quote")
    found = str(error.token) if isinstance(error, UnexpectedToken) else expression[at : at + 12]
    return _error(at + 1, f"unexpected {found!r}{hint}")


def _expected(error: UnexpectedInput) -> set[str]:
    if isinstance(error, UnexpectedToken):
        return set(error.accepts or error.expected)
    return set(error.allowed or ()) if isinstance(error, UnexpectedCharacters) else set()
