# SPDX-License-Identifier: Apache-2.0
"""Graphs by chance whose structure lies: strided views beyond their storage, claims that no kernel
keeps, writes through views that overlap. Text, as man/djinn-srg.7.scd has it; the parser checks no
meaning, so what is wrong in it reaches djinnd."""

import random

EDGES = (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1023, 4096, -1, -2, -8, 2**31 - 1, 2**31, 2**40, 2**62)
SMALL = (0, 1, 2, 3, 4, 8, 16)
ELEMENTS = 64  # of the input, float32

# What computes something of a view, and keeps its shape.
UNARY = ("aten::relu", "aten::neg", "aten::exp", "aten::tanh", "aten::clone", "aten::sigmoid")
# What writes through a view.
IN_PLACE = ("aten::relu_", "aten::zero_", "aten::add_.Tensor", "aten::copy_", "aten::mul_.Tensor")
VIEWS = (
    "aten::as_strided(%{x}, {sizes}, {strides}, {offset})",
    "aten::slice.Tensor(%{x}, {dim}, {a}, {b}, {step})",
    "aten::select.int(%{x}, {dim}, {a})",
    "aten::narrow(%{x}, {dim}, {a}, {b})",
    "aten::expand(%{x}, {sizes})",
    "aten::view(%{x}, {sizes})",
    "aten::unfold(%{x}, {dim}, {a}, {step})",
    "aten::diagonal(%{x}, {a}, {dim}, {b})",
    "aten::transpose.int(%{x}, {dim}, {a})",
    "aten::unsqueeze(%{x}, {dim})",
    "aten::permute(%{x}, {sizes})",
)


def number(r: random.Random) -> int:
    return r.choice(EDGES if r.random() < 0.3 else SMALL)


def numbers(r: random.Random, count: int) -> str:
    return "[" + ", ".join(str(number(r)) for _ in range(count)) + "]"


def view_call(r: random.Random, x: int) -> str:
    rank = r.randrange(4)
    return r.choice(VIEWS).format(
        x=x,
        sizes=numbers(r, rank),
        strides=numbers(r, rank),
        offset=number(r),
        dim=r.choice((0, 0, 1, -1, 2, 7)),
        a=number(r),
        b=number(r),
        step=r.choice((1, 1, 2, 0, -1, 64)),
    )


def claim(r: random.Random) -> str:
    """A claim of a type, of a layout too, that need not be so."""
    rank = r.randrange(4)
    layout = f" strides {numbers(r, rank)}" if r.random() < 0.5 else ""
    offset = f" offset {number(r)}" if layout and r.random() < 0.3 else ""
    dtype = r.choice(("float32", "float32", "int64", "bfloat16", "bool", "?"))
    return f" : {dtype}{numbers(r, rank)}{layout}{offset}"


def declared_view(r: random.Random, name: int) -> str:
    rank = r.randrange(4)
    return (
        f"view %v{name} of %v0 : float32{numbers(r, rank)}"
        f" strides {numbers(r, rank)} offset {number(r)}"
    )


def statement(r: random.Random, name: int) -> str:
    """Defines %v<name> of one that was defined before."""
    x = r.randrange(name)
    call = r.choice(
        (
            view_call(r, x).replace("%", "%v"),
            f"{r.choice(UNARY)}(%v{x})",
            f"aten::add.Tensor(%v{x}, %v{r.randrange(name)})",
            in_place(r, x, r.randrange(name)),
            f"aten::cat([%v{x}, %v{r.randrange(name)}], {number(r)})",
            f"aten::index_select(%v{x}, 0, %i)",
            f"aten::sum.dim_IntList(%v{x}, [{number(r)}], false)",
        )
    )
    return f"%v{name}{claim(r) if r.random() < 0.4 else ''} = {call}"


def in_place(r: random.Random, x: int, other: int) -> str:
    op = r.choice(IN_PLACE)
    return f"{op}(%v{x}, %v{other})" if op in IN_PLACE[2:] else f"{op}(%v{x})"


# --- what passes of fast numerics take, of any sizes

ODD = (0, 1, 2, 3, 7, 16, 31, 33, 64, 65, 130)
FLOATS = ("float32", "float32", "float16")


def size(r: random.Random) -> int:
    return r.choice(ODD)


def norm(r: random.Random) -> list[str]:
    rows, width = size(r), size(r)
    return [
        f'input %x "x" : float32[{rows}, {width}]',
        f'input %w "w" : float32[{r.choice((width, 1))}]',
        "%s = aten::pow.Tensor_Scalar(%x, 2)",
        f"%m = aten::mean.dim(%s, [{r.choice((-1, -1, 0))}], true)",
        f"%a = aten::add.Tensor(%m, {r.choice(('1e-06', '0.0', '-1.0', 'nan'))})",
        "%r = aten::rsqrt(%a)",
        "%n = aten::mul.Tensor(%x, %r)",
        "%y = aten::mul.Tensor(%w, %n)",
    ]


def gate(r: random.Random) -> list[str]:
    dtype, sizes = r.choice(FLOATS), f"{size(r)}, {size(r)}"
    word = r.choice(("tanh", "none", "other"))
    return [
        f'input %x "x" : {dtype}[{sizes}]',
        f'input %g "g" : {r.choice((dtype, "float32", "int64"))}[{r.choice((sizes, "1", ""))}]',
        r.choice(("%a = aten::silu(%x)", f'%a = aten::gelu(%x, approximate="{word}")')),
        f"%y = aten::mul.Tensor({r.choice(('%a, %g', '%g, %a', '%a, %x', '%a, %a'))})",
    ]


def rope(r: random.Random) -> list[str]:
    dtype, heads, tokens, width = r.choice(FLOATS), size(r), r.choice((0, 1, 5)), size(r)
    half = r.choice((width // 2, width // 2, max(width // 2 - 1, 0)))
    table = r.choice((f"{tokens}, {width}", f"1, 1, 1, {width}", f"{width}"))
    return [
        f'input %x "x" : {dtype}[1, {heads}, {tokens}, {width}]',
        f'input %c "c" : {dtype}[{table}]',
        f'input %s "s" : {dtype}[{table}]',
        f"%b = aten::slice.Tensor(%x, 3, {half}, {r.choice((width, 2**62))}, 1)",
        f"%f = aten::slice.Tensor(%x, 3, 0, {half}, 1)",
        "%n = aten::neg(%b)",
        "%k = aten::cat([%n, %f], -1)",
        "%p = aten::mul.Tensor(%x, %c)",
        "%q = aten::mul.Tensor(%k, %s)",
        "%y = aten::add.Tensor(%p, %q)",
    ]


def attention(r: random.Random) -> list[str]:
    dtype, heads, shared = r.choice(FLOATS), r.choice((0, 1, 2, 6)), r.choice((0, 1, 2))
    queries, keys, width = r.choice((0, 1, 5, 33)), r.choice((0, 1, 7, 64)), size(r)
    mask = r.choice((f"{queries}, {keys}", f"1, 1, 1, {keys}", "1", f"1, {heads}, {queries}, 1"))
    kind = r.choice(("bool", dtype))
    return [
        f'input %q "q" : {dtype}[1, {heads}, {queries}, {width}]',
        f'input %k "k" : {dtype}[1, {shared}, {keys}, {width}]',
        f'input %v "v" : {dtype}[1, {shared}, {keys}, {r.choice((width, width, size(r)))}]',
        f'input %m "m" : {kind}[{mask}]',
        f"%y = aten::scaled_dot_product_attention(%q, %k, %v, {r.choice(('%m', 'none'))}, 0.0, "
        f"{r.choice(('false', 'false', 'true'))}, scale=0.25, enable_gqa=true)",
    ]


def fast(r: random.Random) -> str:
    """A graph without symbols, of inputs in float32, float16, int64 and bool."""
    lines = r.choice((norm, gate, rope, attention))(r)
    return "\n".join(['srg 1 "f" numerics "fast"', *lines, "output %y"]) + "\n"


# --- whatever may be written


def structural(r: random.Random) -> str:
    """A graph of an input `x`, float32[64], and `i`, int64[4]."""
    lines = ['srg 1 "s"', f'input %v0 "x" : float32[{ELEMENTS}]', 'input %i "i" : int64[4]']
    count = r.randrange(2, 8)
    for name in range(1, count):
        declare = name == 1 and r.random() < 0.3
        lines.append(declared_view(r, name) if declare else statement(r, name))
    outputs = r.sample(range(1, count), r.randrange(1, count))
    return "\n".join([*lines, "output " + ", ".join(f"%v{o}" for o in outputs)]) + "\n"
