"""Products of a few rows with a matrix, in tiles that stay in vector registers.

BLAS libraries are made for taller matrices: they first copy the matrix into panels of their own,
which costs more than multiplying it by a few rows. Here weights are kept so, see `layout.panels`.
A tile is up to six rows by sixteen columns: twelve registers of eight numbers. (One row takes four
panels at once, since fewer sums than eight wait for each other.) numba has no such registers, and
its compiler does not find them in loops; hence the intrinsic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from bilinear_wm.planning.layout import WIDTH

LANES = 8
VECTORS = WIDTH // LANES

_FAST: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "fastmath": {"contract", "reassoc", "nsz", "arcp"},
    "error_model": "numpy",  # division without a check that would keep loops from vectors
}
INNER: dict[str, Any] = _FAST | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def entry(function: Callable[..., Any]) -> Any:
    """Compile what Python calls."""
    return njit(**_FAST)(function)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile what only the kernel calls, without wrappers for Python."""
    return njit(**INNER)(function)


def _tile(rows: int, neighbours: int = 1) -> Any:
    """A function for tiles of that many rows, and panels beside each other."""

    @intrinsic
    def tile(_: Any, left: Any, start: Any, right: Any, at: Any, stride: Any, out: Any, to: Any):  # type: ignore[no-untyped-def]
        """out = left @ right for arrays of float32, `left` and `out` by whole rows.

        `start`, `at` and `to` count numbers from the arrays' beginnings, `stride` those from one
        row of `right` to the next.
        """
        place = types.intp
        return types.void(left, place, right, place, place, out, place), code

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        left, right, out = (
            context.make_array(signature.args[i])(context, b, args[i]) for i in (0, 2, 5)
        )
        depth, wide = (cgutils.unpack_tuple(b, x.shape)[-1] for x in (left, out))
        places = zip((left, right, out), (args[1], args[3], args[6]), strict=True)
        pointers = [b.gep(array.data, [place]) for array, place in places]
        b.call(_tile_code(b.module, rows, neighbours), [*pointers, depth, args[4], wide])
        return context.get_dummy_value()

    return tile


def _tile_code(module: Any, rows: int, neighbours: int) -> Any:
    """The tile as a function of pointers, depth, and the lengths of right's and out's rows.

    It is never inlined: its many copies would take minutes to compile.
    """
    number, index = ir.FloatType(), ir.IntType(64)
    vector, lanes = ir.VectorType(number, LANES), ir.VectorType(ir.IntType(32), LANES)
    kind = ir.FunctionType(ir.VoidType(), [number.as_pointer()] * 3 + [index] * 3)
    tile = cgutils.get_or_insert_function(module, kind, f"bilinear_wm_tile_{rows}_{neighbours}")
    if tile.blocks:
        return tile
    tile.linkage = "linkonce_odr"
    tile.attributes.add("noinline")
    b = ir.IRBuilder(tile.append_basic_block())
    left, right, out, depth, stride, wide = tile.args
    multiply_add = cgutils.get_or_insert_function(
        module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
    )

    def pointer(array: Any, start: Any, length: Any, i: int, column: int) -> Any:
        place = b.add(start, b.mul(length, ir.Constant(index, i)))
        place = b.add(place, ir.Constant(index, LANES * column))
        return b.gep(array, [place])

    def registers(address: Any) -> Any:
        return b.bitcast(address, vector.as_pointer())

    origin, zero = ir.Constant(index, 0), ir.Constant(vector, [0.0] * LANES)
    none, first = ir.Constant(vector, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    gap = b.mul(depth, ir.Constant(index, WIDTH))  # between panels
    columns = range(neighbours * VECTORS)
    sums = [[cgutils.alloca_once_value(b, zero) for _ in columns] for _ in range(rows)]
    with cgutils.for_range(b, depth) as loop:
        here = b.mul(loop.index, stride)
        addresses = [pointer(right, here, gap, j // VECTORS, j % VECTORS) for j in columns]
        weights = [b.load(registers(address), align=4) for address in addresses]
        for i in range(rows):
            x = b.load(pointer(left, loop.index, depth, i, 0))
            x = b.insert_element(none, x, first)
            x = b.shuffle_vector(x, none, ir.Constant(lanes, [0] * LANES))
            for j in columns:
                total = b.call(multiply_add, [x, weights[j], b.load(sums[i][j])])
                b.store(total, sums[i][j])
    for i in range(rows):
        for j in columns:
            address = registers(pointer(out, origin, wide, i, j))
            b.store(b.load(sums[i][j]), address, align=4)
    b.ret_void()
    return tile


_ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX = (_tile(rows) for rows in range(1, 7))
_ONE_BY_FOUR, _THREE_BY_TWO = _tile(1, 4), _tile(3, 2)


@compiled
def _tiles(
    left: Any, rows: int, right: Any, at: int, stride: int, out: Any, to: int, wide: int
) -> None:
    """A panel of out = left @ right for the first `rows` of left; tiles are about equally high."""
    depth = left.shape[1]
    i, count = 0, -(-rows // 6)
    while i < rows:
        height = -(-(rows - i) // count)
        start, place = i * depth, to + i * wide
        if height == 6:
            _SIX(left, start, right, at, stride, out, place)
        elif height == 5:
            _FIVE(left, start, right, at, stride, out, place)
        elif height == 4:
            _FOUR(left, start, right, at, stride, out, place)
        elif height == 3:
            _THREE(left, start, right, at, stride, out, place)
        elif height == 2:
            _TWO(left, start, right, at, stride, out, place)
        else:
            _ONE(left, start, right, at, stride, out, place)
        i += height
        count -= 1


@compiled
def products(left: Any, rows: int, right: Any, out: Any) -> None:
    """out = left @ right for the first `rows` of left, and `right` in panels."""
    depth, wide, first = left.shape[1], out.shape[1], 0
    count, size = right.shape[0] // depth, depth * WIDTH
    if rows == 1:
        first = count // 4 * 4
        for panel in range(0, first, 4):
            _ONE_BY_FOUR(left, 0, right, panel * size, WIDTH, out, panel * WIDTH)
    elif rows == 3:
        first = count // 2 * 2
        for panel in range(0, first, 2):
            _THREE_BY_TWO(left, 0, right, panel * size, WIDTH, out, panel * WIDTH)
    for panel in range(first, count):
        _tiles(left, rows, right, panel * size, WIDTH, out, panel * WIDTH, wide)


@compiled
def combine(left: Any, rows: int, right: Any, at: int, out: Any, to: int) -> None:
    """out = left @ right for the first `rows` of left; `right` and `out` have out's row length.

    `at` and `to` count numbers from the arrays' beginnings.
    """
    wide = out.shape[-1]
    for column in range(0, wide, WIDTH):
        _tiles(left, rows, right, at + column, wide, out, to + column, wide)
