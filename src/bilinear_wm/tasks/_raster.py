"""The numba functions of `raster.py`, which explains what they draw."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

compiled = njit(
    nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "arcp", "nnan", "ninf"}
)

HALF = np.float32(0.5)
ONE = np.float32(1)
ZERO = np.float32(0)
NOTHING = np.float32(-1e30)


@compiled
def fill(
    near: Any, ids: Any, layer: int, face: int, dx: Any, dy: Any,
    x0: Any, y0: Any, k0: Any, x1: Any, y1: Any, k1: Any, x2: Any, y2: Any, k2: Any, over: Any,
) -> None:  # fmt: skip
    """Where the samples at (column + dx, row + dy) lie in a triangle that is nearest there.

    `k` is what grows towards the viewer, linear in the picture; `over` is 1 / twice the area.
    """
    left = max(int(np.ceil(min(x0, x1, x2) - dx)), 0)
    right = min(int(np.floor(max(x0, x1, x2) - dx)), near.shape[2] - 1)
    top = max(int(np.ceil(min(y0, y1, y2) - dy)), 0)
    bottom = min(int(np.floor(max(y0, y1, y2) - dy)), near.shape[1] - 1)
    if left > right:
        return
    ax, ay, bx, by = (y1 - y2) * over, (x2 - x1) * over, (y2 - y0) * over, (x0 - x2) * over
    slope = ax * (k0 - k2) + bx * (k1 - k2)
    first = np.float32(left) + dx - x2
    for row in range(top, bottom + 1):
        y = np.float32(row) + dy - y2
        a = ax * first + ay * y
        b = bx * first + by * y
        k = k2 + a * (k0 - k2) + b * (k1 - k2)
        for column in range(left, right + 1):
            if a >= ZERO and b >= ZERO and a + b <= ONE and k > near[layer, row, column]:
                near[layer, row, column] = k
                ids[layer, row, column] = face
            a += ax
            b += bx
            k += slope


@compiled
def cover(
    near: Any, x0: Any, y0: Any, k0: Any, x1: Any, y1: Any, k1: Any, x2: Any, y2: Any, k2: Any,
    over: Any,
) -> None:  # fmt: skip
    """`fill` of a map without faces, at the middles of its texels; no branch inside its loop."""
    left = max(int(np.ceil(min(x0, x1, x2) - HALF)), 0)
    right = min(int(np.floor(max(x0, x1, x2) - HALF)), near.shape[1] - 1)
    top = max(int(np.ceil(min(y0, y1, y2) - HALF)), 0)
    bottom = min(int(np.floor(max(y0, y1, y2) - HALF)), near.shape[0] - 1)
    ax, ay, bx, by = (y1 - y2) * over, (x2 - x1) * over, (y2 - y0) * over, (x0 - x2) * over
    slope = ax * (k0 - k2) + bx * (k1 - k2)
    first = np.float32(left) + HALF - x2
    for row in range(top, bottom + 1):
        y = np.float32(row) + HALF - y2
        a = ax * first + ay * y
        b = bx * first + by * y
        k = k2 + a * (k0 - k2) + b * (k1 - k2)
        for column in range(left, right + 1):
            inside = min(a, b, ONE - a - b) >= ZERO
            near[row, column] = max(near[row, column], k if inside else NOTHING)
            a += ax
            b += bx
            k += slope


@compiled
def place(solid: Any, pos: Any, mat: Any, view: Any, lamp: Any, points: Any) -> None:
    """Vertices to `points`: world (3), picture (2), 1 / depth, and the shadow map's (3)."""
    eye, axes, middle, focal = view.eye, view.axes, view.middle, view.focal
    for i in range(len(solid.vertices)):
        g = solid.vertex_geom[i]
        a, b, c = solid.vertices[i, 0], solid.vertices[i, 1], solid.vertices[i, 2]
        x = pos[g, 0] + mat[g, 0, 0] * a + mat[g, 0, 1] * b + mat[g, 0, 2] * c
        y = pos[g, 1] + mat[g, 1, 0] * a + mat[g, 1, 1] * b + mat[g, 1, 2] * c
        z = pos[g, 2] + mat[g, 2, 0] * a + mat[g, 2, 1] * b + mat[g, 2, 2] * c
        points[i, 0], points[i, 1], points[i, 2] = x, y, z
        a, b, c = x - eye[0], y - eye[1], z - eye[2]
        inverse = -ONE / (axes[2, 0] * a + axes[2, 1] * b + axes[2, 2] * c)
        scale = focal * inverse
        points[i, 3] = middle + scale * (axes[0, 0] * a + axes[0, 1] * b + axes[0, 2] * c)
        points[i, 4] = middle - scale * (axes[1, 0] * a + axes[1, 1] * b + axes[1, 2] * c)
        points[i, 5] = inverse
        points[i, 6], points[i, 7], points[i, 8] = to_light(lamp, x, y, z)


@compiled
def to_light(lamp: Any, x: Any, y: Any, z: Any) -> Any:
    """Where the shadow's lamp sees a point: two coordinates, and what grows towards the lamp."""
    x, y, z = x - lamp.eye[0], y - lamp.eye[1], z - lamp.eye[2]
    axes = lamp.axes
    u = axes[0, 0] * x + axes[0, 1] * y + axes[0, 2] * z
    v = axes[1, 0] * x + axes[1, 1] * y + axes[1, 2] * z
    k = axes[2, 0] * x + axes[2, 1] * y + axes[2, 2] * z
    if lamp.parallel:
        return u, v, k
    inverse = -ONE / k
    return u * inverse, v * inverse, inverse


@compiled
def aim(lamp: Any, points: Any, out: Any) -> None:
    """`to_light` of many."""
    for i in range(len(points)):
        out[i, 0], out[i, 1], out[i, 2] = to_light(lamp, points[i, 0], points[i, 1], points[i, 2])


@compiled
def cast(solid: Any, points: Any, window: Any, near: Any) -> None:
    """The shadow map over the solid's own extent; `window` gets its corner and its scale."""
    low0 = low1 = np.float32(1e30)
    high0 = high1 = np.float32(-1e30)
    for i in range(len(points)):
        low0, high0 = min(low0, points[i, 6]), max(high0, points[i, 6])
        low1, high1 = min(low1, points[i, 7]), max(high1, points[i, 7])
    scale = np.float32(near.shape[0]) / max(high0 - low0, high1 - low1)
    window[0], window[1], window[2] = low0, low1, scale
    near[:] = np.float32(-1e30)
    faces = solid.faces
    for face in range(len(faces)):
        a, b, c = faces[face, 0], faces[face, 1], faces[face, 2]
        x0, y0 = (points[a, 6] - low0) * scale, (points[a, 7] - low1) * scale
        x1, y1 = (points[b, 6] - low0) * scale, (points[b, 7] - low1) * scale
        x2, y2 = (points[c, 6] - low0) * scale, (points[c, 7] - low1) * scale
        area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
        if abs(area) > np.float32(1e-6):
            cover(near, x0, y0, points[a, 8], x1, y1, points[b, 8], x2, y2, points[c, 8],
                  ONE / area)  # fmt: skip


@compiled
def lit(lamp: Any, window: Any, near: Any, u: Any, v: Any, k: Any, bias: Any) -> bool:
    """Whether nothing stands between the lamp and this point."""
    column, row = int((u - window[0]) * window[2]), int((v - window[1]) * window[2])
    if u < window[0] or v < window[1] or row >= near.shape[0] or column >= near.shape[1]:
        return True
    if max(abs(u), abs(v)) > lamp.reach:
        return True
    return k + bias >= near[row, column]


@compiled
def illuminate(
    lights: Any, view: Any, solid: Any, g: int, x: Any, y: Any, z: Any, nx: Any, ny: Any, nz: Any,
    corners: Any, at: int,
) -> None:  # fmt: skip
    """The colour of a corner: without (first three) and only by the lamp with a shadow."""
    colour, gloss, exponent = solid.colour, solid.gloss[g, 0], solid.gloss[g, 1]
    for c in range(3):
        corners[at, c] = solid.gloss[g, 2] * colour[g, c]
        corners[at, 3 + c] = ZERO
    vx, vy, vz = view.eye[0] - x, view.eye[1] - y, view.eye[2] - z
    over = ONE / np.sqrt(vx * vx + vy * vy + vz * vz)
    vx, vy, vz = vx * over, vy * over, vz * over
    for i in range(len(lights.parallel)):
        strength = ONE
        dx, dy, dz = lights.dir[i, 0], lights.dir[i, 1], lights.dir[i, 2]
        if lights.parallel[i]:
            lx, ly, lz = -dx, -dy, -dz
        else:
            lx, ly, lz = lights.pos[i, 0] - x, lights.pos[i, 1] - y, lights.pos[i, 2] - z
            far = np.sqrt(lx * lx + ly * ly + lz * lz)
            lx, ly, lz = lx / far, ly / far, lz / far
            fade = lights.attenuation
            strength = ONE / (fade[i, 0] + far * (fade[i, 1] + far * fade[i, 2]))
            if lights.cone[i] > -ONE:
                along = -(lx * dx + ly * dy + lz * dz)
                strength = (
                    strength * along ** lights.exponent[i] if along >= lights.cone[i] else ZERO
                )
        facing = nx * lx + ny * ly + nz * lz
        shine = ZERO
        if (
            facing > ZERO
            and lights.specular[i, 0] + lights.specular[i, 1] + lights.specular[i, 2] > ZERO
        ):
            hx, hy, hz = lx + vx, ly + vy, lz + vz
            mirrored = (nx * hx + ny * hy + nz * hz) / np.sqrt(hx * hx + hy * hy + hz * hz)
            if mirrored > np.float32(0.5):
                shine = gloss * mirrored**exponent
        facing = max(facing, ZERO)
        first = 3 if lights.shadow[i] else 0
        for c in range(3):
            corners[at, first + c] += strength * (
                colour[g, c] * (lights.ambient[i, c] + facing * lights.diffuse[i, c])
                + shine * lights.specular[i, c]
            )
    for c in range(6):
        corners[at, c] = min(max(corners[at, c], ZERO), ONE)


@compiled
def rasterise(solid: Any, points: Any, view: Any, near: Any, ids: Any) -> None:
    """The nearest face of every sample: (4, size, size)."""
    faces, samples, size = solid.faces, view.samples, np.float32(near.shape[1])
    for face in range(len(faces)):
        a, b, c = faces[face, 0], faces[face, 1], faces[face, 2]
        x0, y0, x1, y1 = points[a, 3], points[a, 4], points[b, 3], points[b, 4]
        x2, y2 = points[c, 3], points[c, 4]
        area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
        if area >= ZERO or max(x0, x1, x2) < ZERO or min(x0, x1, x2) > size:
            continue
        if max(y0, y1, y2) < ZERO or min(y0, y1, y2) > size:
            continue
        k0, k1, k2 = points[a, 5], points[b, 5], points[c, 5]
        if min(k0, k1, k2) > ZERO:
            for s in range(len(samples)):
                fill(near, ids, s, face, samples[s, 0], samples[s, 1],
                     x0, y0, k0, x1, y1, k1, x2, y2, k2, ONE / area)  # fmt: skip


@compiled
def draw(
    solid: Any, pos: Any, mat: Any, view: Any, lamp: Any, lights: Any, scenery: Any, space: Any,
    bias: Any, out: Any,
) -> None:  # fmt: skip
    """The picture."""
    points, window, near, ids = space.points, space.window, space.near, space.ids
    place(solid, pos, mat, view, lamp, points)
    cast(solid, points, window, space.shadow)
    near[:] = scenery.near
    ids[:] = -1
    rasterise(solid, points, view, near, ids)
    space.known[:] = False
    size, texel = out.shape[0], ONE / window[2]
    colour = space.colour
    total = np.empty(3, np.int64)
    for row in range(size):
        for column in range(size):
            total[:] = 0
            before = -2
            for s in range(len(view.samples)):
                face = ids[s, row, column]
                if face != before:
                    if face < 0:
                        at, where = row * size + column, scenery.light
                        bright = int(lit(lamp, window, space.shadow, where[at, 0], where[at, 1],
                                         where[at, 2], bias[0]))  # fmt: skip
                        for c in range(3):
                            colour[c] = scenery.colour[bright, row, column, c]
                    else:
                        shade(solid, mat, view, lamp, lights, space, face, row, column,
                              texel, bias, colour)  # fmt: skip
                    before = face
                for c in range(3):
                    total[c] += colour[c]
            for c in range(3):
                out[row, column, c] = (total[c] + 2) // 4


@compiled
def shade(
    solid: Any, mat: Any, view: Any, lamp: Any, lights: Any, space: Any, face: int, row: int,
    column: int, texel: Any, bias: Any, colour: Any,
) -> None:  # fmt: skip
    """The colour (0 to 255) of a face at the middle of a pixel."""
    points, corners, normals, g = space.points, space.corners, solid.normals, solid.face_geom[face]
    a, b, c = solid.faces[face, 0], solid.faces[face, 1], solid.faces[face, 2]
    first = 3 * face
    if not space.known[face]:
        space.known[face] = True
        for corner in range(3):
            nx, ny, nz = (
                normals[face, corner, 0],
                normals[face, corner, 1],
                normals[face, corner, 2],
            )
            i = solid.faces[face, corner]
            illuminate(lights, view, solid, g, points[i, 0], points[i, 1], points[i, 2],
                       mat[g, 0, 0] * nx + mat[g, 0, 1] * ny + mat[g, 0, 2] * nz,
                       mat[g, 1, 0] * nx + mat[g, 1, 1] * ny + mat[g, 1, 2] * nz,
                       mat[g, 2, 0] * nx + mat[g, 2, 1] * ny + mat[g, 2, 2] * nz,
                       corners, first + corner)  # fmt: skip
    x, y = np.float32(column) + HALF, np.float32(row) + HALF
    x0, y0, x1, y1 = points[a, 3] - x, points[a, 4] - y, points[b, 3] - x, points[b, 4] - y
    x2, y2 = points[c, 3] - x, points[c, 4] - y
    u, v, w = x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0
    u, v, w = u * points[a, 5], v * points[b, 5], w * points[c, 5]
    over = ONE / (u + v + w)
    u, v, w = u * over, v * over, w * over
    bright = False
    most = ZERO
    for corner in range(first, first + 3):
        most = max(most, corners[corner, 3], corners[corner, 4], corners[corner, 5])
    if most > ZERO:
        # How much nearer to the lamp the face may be in the map's texel than at this point.
        u0, v0, k0 = points[a, 6], points[a, 7], points[a, 8]
        u1, v1, k1 = points[b, 6], points[b, 7], points[b, 8]
        u2, v2, k2 = points[c, 6], points[c, 7], points[c, 8]
        area = abs((u1 - u0) * (v2 - v0) - (u2 - u0) * (v1 - v0))
        rise = abs((k1 - k0) * (v2 - v0) - (k2 - k0) * (v1 - v0))
        rise += abs((u1 - u0) * (k2 - k0) - (u2 - u0) * (k1 - k0))
        slope = min(rise / max(area, np.float32(1e-12)), bias[2])
        bright = lit(lamp, space.window, space.shadow, u * u0 + v * u1 + w * u2,
                     u * v0 + v * v1 + w * v2, u * k0 + v * k1 + w * k2,
                     bias[0] + bias[1] * slope * texel)  # fmt: skip
    for i in range(3):
        value = u * corners[first, i] + v * corners[first + 1, i] + w * corners[first + 2, i]
        total = int(min(max(value, ZERO), ONE) * np.float32(255) + HALF)
        if bright:
            i += 3
            value = u * corners[first, i] + v * corners[first + 1, i] + w * corners[first + 2, i]
            total += int(min(max(value, ZERO), ONE) * np.float32(255) + HALF)
            i -= 3
        colour[i] = min(total, 255)
