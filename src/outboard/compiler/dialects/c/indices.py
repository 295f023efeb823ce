# SPDX-License-Identifier: Apache-2.0
"""Index expressions."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from ..base import Unsupported
from .prelude import Prelude

_SIZE = sympy.Symbol("size", integer=True, positive=True)


class IndexPrinter:
    """Prints sympy integer expressions as ``long`` (or ``longN``) arithmetic.

    ``names`` gives the text of each symbol that varies within a kernel; ``vectors`` are the symbols whose text is a
    vector of ``width`` lanes. All other symbols are sizes: ``argument`` gives the text of what only they decide.
    """

    def __init__(
        self,
        prelude: Prelude,
        names: dict[sympy.Symbol, str],
        vectors: set[sympy.Symbol],
        width: int,
        argument: Callable[[sympy.Expr], str],
    ) -> None:
        self.prelude = prelude
        self.names = names
        self.vectors = vectors
        self.width = width
        self.argument = argument

    def _is_fixed(self, expr: sympy.Basic) -> bool:
        """Whether only sizes decide the integer."""
        symbols = expr.free_symbols
        return bool(symbols) and expr.is_integer is True and symbols.isdisjoint(self.names)

    def is_vector(self, expr: sympy.Basic) -> bool:
        """Whether the expression differs between lanes."""
        return self.width > 1 and bool(expr.free_symbols & self.vectors)

    def __call__(self, expr: sympy.Basic) -> str:
        """The text of an expression. Raises Unsupported."""
        if self._is_fixed(expr):
            return self.argument(expr)
        if isinstance(expr, sympy.Symbol):
            return self.names[expr]
        if expr.is_Integer:
            return f"{int(expr)}L"
        if isinstance(expr, sympy.Float) and float(expr).is_integer():
            return f"{int(expr)}L"
        method = getattr(self, f"_{type(expr).__name__}", None)
        if method is None:
            raise Unsupported(f"index expression {type(expr).__name__}")
        text: str = method(expr)
        return text

    def _join(self, symbol: str, expr: sympy.Basic) -> str:
        return "(" + f" {symbol} ".join(self(a) for a in self._terms(expr)) + ")"

    def _terms(self, expr: sympy.Basic) -> list[sympy.Basic]:
        """The operands of a sum or product: those that only sizes decide as one, the others in an order that does not
        depend on the names of sizes."""
        fixed = [a for a in expr.args if self._is_fixed(a) or a.is_Integer]
        terms = sorted((a for a in expr.args if a not in fixed), key=self._shape)
        return [*terms, expr.func(*fixed)] if fixed else terms

    def _shape(self, expr: sympy.Basic) -> str:
        return str(expr.xreplace({symbol: _SIZE for symbol in expr.free_symbols if symbol not in self.names}))

    def _Add(self, expr: sympy.Basic) -> str:
        return self._join("+", expr)

    def _Mul(self, expr: sympy.Basic) -> str:
        numerator, denominator = expr.as_numer_denom()
        if denominator != 1:
            return f"({self(numerator)} / {self(denominator)})"
        return self._join("*", expr)

    def _Pow(self, expr: sympy.Basic) -> str:
        base, exponent = expr.args
        if not exponent.is_Integer or int(exponent) < 0 or int(exponent) > 8:
            raise Unsupported(f"power {exponent}")
        return "(" + " * ".join([self(base)] * int(exponent)) + ")"

    _PowByNatural = _Pow

    def _FloorDiv(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        if base.is_nonnegative and divisor.is_positive:
            return f"({self(base)} / {self(divisor)})"
        vector = self.is_vector(expr)
        function = self.prelude.use("floordiv", torch.int64, self.width if vector else 1)
        return f"{function}({self._lanes(base, vector)}, {self._lanes(divisor, vector)})"

    def _lanes(self, expr: sympy.Basic, vector: bool) -> str:
        text = self(expr)
        return f"((long{self.width})({text}))" if vector and not self.is_vector(expr) else text

    def _CleanDiv(self, expr: sympy.Basic) -> str:
        return f"({self(expr.args[0])} / {self(expr.args[1])})"

    def _CeilDiv(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        return f"(({self(base)} + {self(divisor)} - 1L) / {self(divisor)})"

    def _ModularIndexing(self, expr: sympy.Basic) -> str:
        base, divisor, modulus = expr.args
        text = self(base)
        if divisor != 1:
            text = f"({text} / {self(divisor)})"
        return f"({text} % {self(modulus)})"

    def _PythonMod(self, expr: sympy.Basic) -> str:
        base, divisor = expr.args
        if base.is_nonnegative and divisor.is_positive:
            return f"({self(base)} % {self(divisor)})"
        vector = self.is_vector(expr)
        function = self.prelude.use("remainder", torch.int64, self.width if vector else 1)
        return f"{function}({self._lanes(base, vector)}, {self._lanes(divisor, vector)})"

    _Mod = _PythonMod

    def _fold(self, function: str, expr: sympy.Basic) -> str:
        vector = self.is_vector(expr)
        first, *rest = expr.args
        text = self._lanes(first, vector)
        for argument in rest:
            text = f"{function}({text}, {self._lanes(argument, vector)})"
        return text

    def _Min(self, expr: sympy.Basic) -> str:
        return self._fold("min", expr)

    def _Max(self, expr: sympy.Basic) -> str:
        return self._fold("max", expr)

    def _Abs(self, expr: sympy.Basic) -> str:
        magnitude = f"abs({self(expr.args[0])})"
        return f"as_long{self.width}({magnitude})" if self.is_vector(expr) else f"((long){magnitude})"

    def _Identity(self, expr: sympy.Basic) -> str:
        return self(expr.args[0])

    def _relation(self, symbol: str, expr: sympy.Basic) -> str:
        vector = self.is_vector(expr)
        return f"({self._lanes(expr.args[0], vector)} {symbol} {self._lanes(expr.args[1], vector)})"

    def _Equality(self, expr: sympy.Basic) -> str:
        return self._relation("==", expr)

    def _Unequality(self, expr: sympy.Basic) -> str:
        return self._relation("!=", expr)

    def _StrictLessThan(self, expr: sympy.Basic) -> str:
        return self._relation("<", expr)

    def _LessThan(self, expr: sympy.Basic) -> str:
        return self._relation("<=", expr)

    def _StrictGreaterThan(self, expr: sympy.Basic) -> str:
        return self._relation(">", expr)

    def _GreaterThan(self, expr: sympy.Basic) -> str:
        return self._relation(">=", expr)

    def _And(self, expr: sympy.Basic) -> str:
        return self._join("&", expr)

    def _Or(self, expr: sympy.Basic) -> str:
        return self._join("|", expr)

    def _Where(self, expr: sympy.Basic) -> str:
        condition, yes, no = expr.args
        vector = self.is_vector(expr)
        if not vector:
            return f"({self(condition)} ? {self(yes)} : {self(no)})"
        return f"select({self._lanes(no, True)}, {self._lanes(yes, True)}, {self._lanes(condition, True)})"
