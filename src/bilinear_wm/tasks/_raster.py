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
CLOSE = np.float32(1e-3)  # what may be between a point and itself in the shadow map ...
STEEP = np.float32(20)  # ... and slopes, which add to that


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
def cast(solid: Any, points: Any, lamp: Any, window: Any, near: Any) -> None:
    """The shadow map over the solid's own extent; `window` gets its corner and its scale."""
    low0 = low1 = np.float32(1e30)
    high0 = high1 = np.float32(-1e30)
    for i in range(len(points)):
        low0, high0 = min(low0, points[i, 6]), max(high0, points[i, 6])
        low1, high1 = min(low1, points[i, 7]), max(high1, points[i, 7])
    scale = min(np.float32(near.shape[0]) / max(high0 - low0, high1 - low1), lamp.finest)
    window[0], window[1], window[2] = low0, low1, scale
    near[:] = np.float32(-1e30)
    faces = solid.faces
    for face in range(len(faces)):
        a, b, c = faces[face, 0], faces[face, 1], faces[face, 2]
        x0, y0 = (points[a, 6] - low0) * scale, (points[a, 7] - low1) * scale
        x1, y1 = (points[b, 6] - low0) * scale, (points[b, 7] - low1) * scale
        x2, y2 = (points[c, 6] - low0) * scale, (points[c, 7] - low1) * scale
        area = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
        if area > np.float32(1e-6):
            cover(near, x0, y0, points[a, 8], x1, y1, points[b, 8], x2, y2, points[c, 8],
                  ONE / area)  # fmt: skip


@compiled
def lit(shadow: Any, left: Any, top: Any, scale: Any, reach: Any, u: Any, v: Any, k: Any) -> bool:
    """Whether nothing stands between the lamp and this point."""
    column, row = int(np.floor((u - left) * scale)), int(np.floor((v - top) * scale))
    if min(row, column) < 0 or row >= shadow.shape[0] or column >= shadow.shape[1]:
        return True
    return max(abs(u), abs(v)) > reach or k >= shadow[row, column]


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
def illuminate(
    solid: Any, mat: Any, view: Any, lights: Any, points: Any, seen: Any, corners: Any
) -> None:
    """The colours of the seen faces' corners: without the lamp, and from it alone."""
    faces, normals, geoms = solid.faces, solid.normals, solid.face_geom
    colour, gloss, eye = solid.colour, solid.gloss, view.eye
    parallel, shadow, position, direction = lights.parallel, lights.shadow, lights.pos, lights.dir
    ambient, diffuse, specular, fade = (
        lights.ambient, lights.diffuse, lights.specular, lights.attenuation
    )  # fmt: skip
    cone, exponent = lights.cone, lights.exponent
    for face in range(len(faces)):
        if not seen[face]:
            continue
        g = geoms[face]
        for corner in range(3):
            i, at = faces[face, corner], 3 * face + corner
            a, b, c = normals[face, corner, 0], normals[face, corner, 1], normals[face, corner, 2]
            nx = mat[g, 0, 0] * a + mat[g, 0, 1] * b + mat[g, 0, 2] * c
            ny = mat[g, 1, 0] * a + mat[g, 1, 1] * b + mat[g, 1, 2] * c
            nz = mat[g, 2, 0] * a + mat[g, 2, 1] * b + mat[g, 2, 2] * c
            x, y, z = points[i, 0], points[i, 1], points[i, 2]
            vx, vy, vz = eye[0] - x, eye[1] - y, eye[2] - z
            over = ONE / np.sqrt(vx * vx + vy * vy + vz * vz)
            vx, vy, vz = vx * over, vy * over, vz * over
            for channel in range(3):
                corners[at, channel] = gloss[g, 2] * colour[g, channel]
                corners[at, 3 + channel] = ZERO
            for light in range(len(parallel)):
                strength = ONE
                dx, dy, dz = direction[light, 0], direction[light, 1], direction[light, 2]
                lx, ly, lz = -dx, -dy, -dz
                if not parallel[light]:
                    lx, ly = position[light, 0] - x, position[light, 1] - y
                    lz = position[light, 2] - z
                    far = np.sqrt(lx * lx + ly * ly + lz * lz)
                    lx, ly, lz = lx / far, ly / far, lz / far
                    strength /= fade[light, 0] + far * (fade[light, 1] + far * fade[light, 2])
                    if cone[light] > -ONE:
                        along = -(lx * dx + ly * dy + lz * dz)
                        if along < cone[light]:
                            continue
                        strength *= along ** exponent[light]
                facing = max(nx * lx + ny * ly + nz * lz, ZERO)
                shine = ZERO
                if facing > ZERO and max(specular[light, 0], specular[light, 1]) > ZERO:
                    hx, hy, hz = lx + vx, ly + vy, lz + vz
                    mirrored = nx * hx + ny * hy + nz * hz
                    if mirrored > ZERO:
                        mirrored /= np.sqrt(hx * hx + hy * hy + hz * hz)
                        shine = gloss[g, 0] * mirrored ** gloss[g, 1]
                first = 3 if shadow[light] else 0
                for channel in range(3):
                    corners[at, first + channel] += strength * (
                        colour[g, channel]
                        * (ambient[light, channel] + facing * diffuse[light, channel])
                        + shine * specular[light, channel]
                    )
            for channel in range(6):
                corners[at, channel] = min(max(corners[at, channel], ZERO), ONE)


@compiled
def draw(
    solid: Any, pos: Any, mat: Any, view: Any, lamp: Any, lights: Any, scenery: Any, space: Any,
    out: Any,
) -> None:  # fmt: skip
    """The picture."""
    points, near, ids, seen = space.points, space.near, space.ids, space.seen
    place(solid, pos, mat, view, lamp, points)
    cast(solid, points, lamp, space.window, space.shadow)
    near[:] = scenery.near
    ids[:] = -1
    rasterise(solid, points, view, near, ids)
    seen[:] = False
    flat = ids.ravel()
    for i in range(len(flat)):
        if flat[i] >= 0:
            seen[flat[i]] = True
    illuminate(solid, mat, view, lights, points, seen, space.corners)
    resolve(solid, lamp, scenery, space, out)


@compiled
def resolve(solid: Any, lamp: Any, scenery: Any, space: Any, out: Any) -> None:
    """Pixels from the faces of their samples, each with its colour in the middle of the pixel."""
    faces, points, ids, corners = solid.faces, space.points, space.ids, space.corners
    background, where, shadow, reach = scenery.colour, scenery.light, space.shadow, lamp.reach
    left, top, scale = space.window[0], space.window[1], space.window[2]
    size, samples = out.shape[0], ids.shape[0]
    for row in range(size):
        for column in range(size):
            red = green = blue = 0  # of all samples
            r = g = b = 0  # of the last face
            before = -2
            for s in range(samples):
                face = ids[s, row, column]
                if face != before and face < 0:
                    at = row * size + column
                    bright = int(lit(shadow, left, top, scale, reach, where[at, 0], where[at, 1],
                                     where[at, 2] + CLOSE))  # fmt: skip
                    r = int(background[bright, row, column, 0])
                    g = int(background[bright, row, column, 1])
                    b = int(background[bright, row, column, 2])
                elif face != before:
                    i0, i1, i2, c = faces[face, 0], faces[face, 1], faces[face, 2], 3 * face
                    x, y = np.float32(column) + HALF, np.float32(row) + HALF
                    x0, y0 = points[i0, 3] - x, points[i0, 4] - y
                    x1, y1 = points[i1, 3] - x, points[i1, 4] - y
                    x2, y2 = points[i2, 3] - x, points[i2, 4] - y
                    u = (x1 * y2 - x2 * y1) * points[i0, 5]
                    v = (x2 * y0 - x0 * y2) * points[i1, 5]
                    w = (x0 * y1 - x1 * y0) * points[i2, 5]
                    over = ONE / (u + v + w)
                    u, v, w = u * over, v * over, w * over
                    r = byte(u * corners[c, 0] + v * corners[c + 1, 0] + w * corners[c + 2, 0])
                    g = byte(u * corners[c, 1] + v * corners[c + 1, 1] + w * corners[c + 2, 1])
                    b = byte(u * corners[c, 2] + v * corners[c + 1, 2] + w * corners[c + 2, 2])
                    p = byte(u * corners[c, 3] + v * corners[c + 1, 3] + w * corners[c + 2, 3])
                    q = byte(u * corners[c, 4] + v * corners[c + 1, 4] + w * corners[c + 2, 4])
                    o = byte(u * corners[c, 5] + v * corners[c + 1, 5] + w * corners[c + 2, 5])
                    if p + q + o > 0:
                        u0, v0, k0 = points[i0, 6], points[i0, 7], points[i0, 8]
                        u1, v1, k1 = points[i1, 6] - u0, points[i1, 7] - v0, points[i1, 8] - k0
                        u2, v2, k2 = points[i2, 6] - u0, points[i2, 7] - v0, points[i2, 8] - k0
                        # How much nearer to the lamp the face may be in the texel than here.
                        slope = abs(k1 * v2 - k2 * v1) + abs(u1 * k2 - u2 * k1)
                        slope /= max(abs(u1 * v2 - u2 * v1), np.float32(1e-12))
                        bias = CLOSE + min(slope, STEEP) / scale
                        if lit(shadow, left, top, scale, reach, u0 + v * u1 + w * u2,
                               v0 + v * v1 + w * v2, k0 + v * k1 + w * k2 + bias):  # fmt: skip
                            r, g, b = min(r + p, 255), min(g + q, 255), min(b + o, 255)
                before = face
                red += r
                green += g
                blue += b
            out[row, column, 0] = (red + samples // 2) // samples
            out[row, column, 1] = (green + samples // 2) // samples
            out[row, column, 2] = (blue + samples // 2) // samples


@compiled
def byte(value: Any) -> int:
    """A part of one as a part of 255."""
    return int(min(max(value, ZERO), ONE) * np.float32(255) + HALF)
