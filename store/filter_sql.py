"""SQL92 property filters: RocketMQ's expression language over a message's properties, parsed once and evaluated many times.

Owns the grammar and its three-valued logic.  Knows property maps, not frames or queues.  Grammar after RocketMQ's ``filter`` module:
``AND OR NOT``, ``= <> > >= < <=``, ``[NOT] BETWEEN``, ``[NOT] IN``, ``IS [NOT] NULL``, ``[NOT] CONTAINS / STARTSWITH / ENDSWITH``, and
string, number and boolean literals.  A property is text; next to a number it is read as a number, and when it is none, or is missing,
the comparison is unknown (None).  Only an expression that is true lets a message pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, v_args
from lark.exceptions import VisitError

from dledger_wire.errors import InvalidArgumentError

Truth = bool | None
Value = str | float | bool | None
Predicate = Callable[[Mapping[str, str]], Truth]
Operand = Callable[[Mapping[str, str]], Value]

MAX_EXPRESSION_CHARS = 4096
MAX_DEPTH = 64

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction ("OR"i conjunction)*            -> any_of
?conjunction: negation ("AND"i negation)*                 -> all_of
?negation: "NOT"i negation                                -> negate
         | test
?test: operand COMPARISON operand                         -> compare
     | operand "BETWEEN"i operand "AND"i operand          -> between
     | operand "NOT"i "BETWEEN"i operand "AND"i operand   -> not_between
     | operand "IN"i "(" literal ("," literal)* ")"       -> contained
     | operand "NOT"i "IN"i "(" literal ("," literal)* ")" -> not_contained
     | operand "IS"i "NULL"i                              -> is_null
     | operand "IS"i "NOT"i "NULL"i                       -> is_not_null
     | operand TEXT_TEST operand                          -> text_test
     | operand "NOT"i TEXT_TEST operand                   -> not_text_test
     | operand                                            -> truth
     | "(" disjunction ")"
?operand: literal
        | NAME                                            -> property_value
?literal: STRING                                          -> string
        | NUMBER                                          -> number
        | "TRUE"i                                         -> true
        | "FALSE"i                                        -> false
COMPARISON: "=" | "<>" | ">=" | "<=" | ">" | "<"
TEXT_TEST.2: /(CONTAINS|STARTSWITH|ENDSWITH)\b/i
STRING: /'([^']|'')*'/
NUMBER: /[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?/
NAME: /(?!(?:AND|OR|NOT|IN|IS|BETWEEN|NULL|TRUE|FALSE|CONTAINS|STARTSWITH|ENDSWITH)\b)[A-Za-z_$][A-Za-z0-9_$.]*/i
%import common.WS
%ignore WS
"""

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


def _comparable(left: Value, right: Value) -> tuple[Value, Value] | None:
    """The pair in one type, or None when they cannot be compared: text becomes a number beside a number, a truth value beside one."""
    if left is None or right is None:
        return None
    if type(left) is type(right):
        return left, right
    if isinstance(left, str):
        converted = _convert(left, right)
        return None if converted is None else (converted, right)
    if isinstance(right, str):
        converted = _convert(right, left)
        return None if converted is None else (left, converted)
    return None


def _convert(text: str, like: Value) -> Value:
    if isinstance(like, bool):
        return {"true": True, "false": False}.get(text.lower())
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number


def _compare(symbol: str, left: Value, right: Value) -> Truth:
    pair = _comparable(left, right)
    if pair is None:
        return None
    # Order between texts or truth values is not part of the language (RocketMQ refuses it at parse time).
    if symbol not in ("=", "<>") and not isinstance(pair[0], float):
        return None
    return _ORDER[symbol](*pair)


def _invert(value: Truth) -> Truth:
    return None if value is None else not value


@v_args(inline=True)
class _Compiler(Transformer):  # type: ignore[type-arg]
    """Turns the parse tree into closures, bottom up; literals stay constants inside them."""

    def any_of(self, *parts: Predicate) -> Predicate:
        if len(parts) == 1:
            return parts[0]

        def evaluate(properties: Mapping[str, str]) -> Truth:
            unknown = False
            for part in parts:
                value = part(properties)
                if value:
                    return True
                unknown = unknown or value is None
            return None if unknown else False

        return evaluate

    def all_of(self, *parts: Predicate) -> Predicate:
        if len(parts) == 1:
            return parts[0]

        def evaluate(properties: Mapping[str, str]) -> Truth:
            unknown = False
            for part in parts:
                value = part(properties)
                if value is False:
                    return False
                unknown = unknown or value is None
            return None if unknown else True

        return evaluate

    def negate(self, part: Predicate) -> Predicate:
        return lambda properties: _invert(part(properties))

    def compare(self, left: Operand, symbol: Token, right: Operand) -> Predicate:
        text = str(symbol)
        return lambda properties: _compare(text, left(properties), right(properties))

    def between(self, value: Operand, low: Operand, high: Operand) -> Predicate:
        return self.all_of(self.compare(value, Token("COMPARISON", ">="), low), self.compare(value, Token("COMPARISON", "<="), high))

    def not_between(self, value: Operand, low: Operand, high: Operand) -> Predicate:
        return self.negate(self.between(value, low, high))

    def contained(self, value: Operand, *choices: Operand) -> Predicate:
        return self.any_of(*[self.compare(value, Token("COMPARISON", "="), choice) for choice in choices])

    def not_contained(self, value: Operand, *choices: Operand) -> Predicate:
        return self.negate(self.contained(value, *choices))

    def is_null(self, value: Operand) -> Predicate:
        return lambda properties: value(properties) is None

    def is_not_null(self, value: Operand) -> Predicate:
        return lambda properties: value(properties) is not None

    def text_test(self, value: Operand, name: Token, part: Operand) -> Predicate:
        test = _TEXT[str(name).upper()]

        def evaluate(properties: Mapping[str, str]) -> Truth:
            text, wanted = value(properties), part(properties)
            # An empty needle matches nothing, as upstream decides.
            return test(text, wanted) if isinstance(text, str) and isinstance(wanted, str) and wanted else None

        return evaluate

    def not_text_test(self, value: Operand, name: Token, part: Operand) -> Predicate:
        return self.negate(self.text_test(value, name, part))

    def truth(self, value: Operand) -> Predicate:
        def evaluate(properties: Mapping[str, str]) -> Truth:
            found = value(properties)
            return found if isinstance(found, bool) else None if found is None else {"true": True, "false": False}.get(str(found).lower())

        return evaluate

    def property_value(self, name: Token) -> Operand:
        key = str(name)
        return lambda properties: properties.get(key)

    def string(self, token: Token) -> Operand:
        text = str(token)[1:-1].replace("''", "'")
        return lambda properties: text

    def number(self, token: Token) -> Operand:
        value = float(token)
        return lambda properties: value

    def true(self) -> Operand:
        return lambda properties: True

    def false(self) -> Operand:
        return lambda properties: False


_PARSER = Lark(_GRAMMAR, parser="earley", lexer="dynamic", maybe_placeholders=False)


class SqlFilter:
    """One compiled expression.  ``matches`` takes a message's properties (TAGS and KEYS among them)."""

    def __init__(self, expression: str) -> None:
        """Parse ``expression``.  Raises InvalidArgumentError that points at the column."""
        self.expression = expression
        self._predicate = _parse(expression)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self._predicate(properties) is True


def _parse(expression: str) -> Predicate:
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise InvalidArgumentError(f"filter: {len(expression)} characters, expected at most {MAX_EXPRESSION_CHARS}")
    if _nesting(expression) > MAX_DEPTH:
        raise InvalidArgumentError(f"filter: parentheses nested deeper than {MAX_DEPTH}")
    try:
        compiled: Predicate = _Compiler().transform(_PARSER.parse(expression))
    except UnexpectedInput as error:
        raise InvalidArgumentError(_explain(expression, error)) from None
    except VisitError as error:
        raise InvalidArgumentError(f"filter: {error.orig_exc}") from None
    return compiled


def _nesting(expression: str) -> int:
    depth = deepest = 0
    for character in expression:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _explain(expression: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedCharacters):
        found = expression[error.column - 1 : error.column + 11] if error.column > 0 else ""
        return f"filter: column {error.column}: unexpected {found!r}"
    if isinstance(error, UnexpectedEOF):
        return f"filter: column {len(expression) + 1}: expression ends too early"
    return f"filter: column {error.column}: not understood"
