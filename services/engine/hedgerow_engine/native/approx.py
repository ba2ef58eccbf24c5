"""Functions of a vector that no instruction computes: exp2, GELU, SiLU, tanh.

Each is a short polynomial, fitted once by least squares in a Chebyshev basis, reweighted until
the error was level; the coefficients are below, lowest power first. The bfloat16 rungs take the
shorter one, whose error lies below the rounding of the result, unless a kernel is `precise`. The
parity test measures the errors.
"""

from __future__ import annotations

from hedgerow_engine.native.ir import Kernel, Real
from hedgerow_engine.native.values import I16, I32, ir

LOG2_E = 1.4426950408889634
_ROUND_AS_SET = 4

# 2 ** x on [0, 1): relative error 7.5e-5 and 7.5e-8.
_EXP2_SHORT = (
    0.9999251961708069,
    0.6958335041999817,
    0.22606728971004486,
    0.07802442461252213,
)
_EXP2_LONG = (
    0.9999999403953552,
    0.6931530833244324,
    0.24015361070632935,
    0.05582631751894951,
    0.008989342488348484,
    0.0018775755306705832,
)
# (normal CDF(u) - 1/2) / u on [0, limit]: in u * u, and in 2 * u * u / limit ** 2 - 1.
# GELU is off by at most 1.8e-4 and 1.7e-6.
_CDF_SHORT_LIMIT, _CDF_LONG_LIMIT = 3.9, 5.0
_CDF_SHORT = (
    0.3981340527534485,
    -0.06493731588125229,
    0.008945360779762268,
    -0.0008512017084285617,
    5.194593541091308e-05,
    -1.8070506939693587e-06,
    2.7002460711855747e-08,
)
_CDF_LONG = (
    0.14136378467082977,
    -0.07029655575752258,
    0.05152096599340439,
    -0.040435243397951126,
    0.03143258020281792,
    -0.023321308195590973,
    0.01646527461707592,
    -0.011015200987458229,
    0.006239649374037981,
    -0.002866239519789815,
    0.001924032112583518,
    -0.0015351069159805775,
    0.0005233271513134241,
)


def polynomial(k: Kernel, x: Real, coefficients: tuple[float, ...]) -> Real:
    """Horner's rule; lowest power first."""
    total = x.like(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total = k.fma(total, x, coefficient)
    return total


def exp2(k: Kernel, x: Real) -> Real:
    """2 ** x. Far below -126 it is 0, not a subnormal number, on every rung."""
    coefficients = _EXP2_LONG if k.precise else _EXP2_SHORT
    if k.rung.has_scalef:
        return _scalef(k, polynomial(k, _fraction(k, x), coefficients), x)
    whole = k.unary("floor", x)
    return _scale_by_power(k, polynomial(k, x - whole, coefficients), whole)


def _fraction(k: Kernel, x: Real) -> Real:
    """x - floor(x) in one instruction (AVX-512)."""
    floor_quietly = I32(0x09)
    kinds = [k.vector, I32, k.vector, I16, I32]
    function = k.unit.external("llvm.x86.avx512.mask.reduce.ps.512", k.vector, kinds)
    args = [x.v, floor_quietly, x.v, I16(-1), I32(_ROUND_AS_SET)]
    return Real(k.b, k.b.call(function, args))


def _scalef(k: Kernel, mantissa: Real, power: Real) -> Real:
    """mantissa * 2 ** floor(power) in one instruction (AVX-512)."""
    kinds = [k.vector, k.vector, k.vector, I16, I32]
    function = k.unit.external("llvm.x86.avx512.mask.scalef.ps.512", k.vector, kinds)
    args = [mantissa.v, power.v, mantissa.v, I16(-1), I32(_ROUND_AS_SET)]
    return Real(k.b, k.b.call(function, args))


def _scale_by_power(k: Kernel, mantissa: Real, power: Real) -> Real:
    """mantissa * 2 ** power for a whole number `power`, through the exponent's bits."""
    exponent = k.b.fptosi(power.at_least(-126.0).at_most(127.0).v, k.int_vector)
    biased = k.b.add(exponent, ir.Constant(k.int_vector, [I32(127)] * k.rung.lanes))
    bits = k.b.shl(biased, ir.Constant(k.int_vector, [I32(23)] * k.rung.lanes))
    scaled = mantissa * Real(k.b, k.b.bitcast(bits, k.vector))
    return k.choose(power.below(-126.0), k.real(0.0), scaled)


def gelu(k: Kernel, x: Real) -> Real:
    """x * normal CDF(x): the exact GELU, not its tanh cousin."""
    short = not k.precise
    limit = _CDF_SHORT_LIMIT if short else _CDF_LONG_LIMIT
    u = x.at_least(-limit).at_most(limit)
    square = u * u
    if short:
        slope = polynomial(k, square, _CDF_SHORT)
    else:
        slope = polynomial(k, k.fma(square, 2.0 / limit**2, -1.0), _CDF_LONG)
    return x * k.fma(u, slope, 0.5)


def sigmoid(k: Kernel, x: Real) -> Real:
    return x.like(1.0) / (exp2(k, x * -LOG2_E) + 1.0)


def silu(k: Kernel, x: Real) -> Real:
    return x * sigmoid(k, x)


def tanh(k: Kernel, x: Real) -> Real:
    """2 * sigmoid(2 x) - 1: absolute error of the exp2 above, fine for heads and gates."""
    return k.fma(sigmoid(k, x * 2.0), 2.0, -1.0)


def gelu_tanh(k: Kernel, x: Real) -> Real:
    """x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x ** 3)): GELU's tanh form."""
    inner = x * k.fma(x * x, 0.044715 * 1.5957691216057308, 1.5957691216057308)
    return x * sigmoid(k, inner)


def relu(k: Kernel, x: Real) -> Real:
    """max(x, 0); not a number stays not a number."""
    return k.choose(x.below(0.0), x.like(0.0), x)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu, "relu": relu}
