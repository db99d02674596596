"""The surfaces of a MuJoCo model as triangles, no more of them than a picture shows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.graphics import mujoco

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]

CREASE = 0.8
"""Corners whose smooth normal is further from the face's than this cosine are shaded flat."""
SHOWN_GROUPS = 3
"""Geoms of the groups before this one are drawn, as MuJoCo does."""
PLANE = mujoco.mjtGeom.mjGEOM_PLANE


class Triangles(NamedTuple):
    """Corners by index into vertices, and a normal for each of them."""

    vertices: F64  # (v, 3)
    faces: I32  # (f, 3)
    normals: F64  # (f, 3, 3)


class Solid(NamedTuple):
    """Triangles in the frames of their geoms, and what these are made of."""

    vertices: F32  # (v, 3)
    vertex_geom: I32  # (v): row of `geoms`
    faces: I32  # (f, 3)
    face_geom: I32  # (f)
    normals: F32  # (f, 3, 3)
    geoms: I32  # (g): of the model
    colour: F32  # (g, 3)
    gloss: F32  # (g, 3): specular, exponent, emission


def shown(model: mujoco.MjModel) -> list[int]:
    """Geoms that MuJoCo draws."""
    visible = (model.geom_group < SHOWN_GROUPS) & (rgba(model)[:, 3] > 0)
    return [int(geom) for geom in np.flatnonzero(visible)]


def make_solid(model: mujoco.MjModel, pitch: float) -> Solid:
    """Every drawn geom but planes, opaque and without texture.

    Args:
        model: Its meshes may be fine.
        pitch: One vertex of a mesh is kept in each cell of a grid this wide (metres).
    """
    geoms = [geom for geom in shown(model) if model.geom_type[geom] != PLANE]
    shapes: dict[tuple[float, ...], Triangles] = {}
    parts = []
    for geom in geoms:
        key = (model.geom_type[geom], model.geom_dataid[geom], *model.geom_size[geom])
        if key not in shapes:
            shapes[key] = _compact(_triangles(model, geom, pitch))
        parts.append(shapes[key])
    whole, row = _joined(parts), np.arange(len(geoms), dtype=np.int32)
    return Solid(
        whole.vertices.astype(np.float32),
        np.repeat(row, [len(part.vertices) for part in parts]),
        whole.faces,
        np.repeat(row, [len(part.faces) for part in parts]),
        whole.normals.astype(np.float32),
        np.array(geoms, np.int32),
        rgba(model)[geoms, :3].astype(np.float32),
        np.array([_gloss(model, geom) for geom in geoms], np.float32),
    )


def merge(vertices: F64, faces: I32, pitch: float) -> tuple[F64, I32, NDArray[np.intp]]:
    """One vertex for each cell of a grid, where it is nearest to the planes of the faces there.

    Returns:
        The vertices, the faces that are left, and which of the old ones these are.
    """
    _, cell = np.unique(np.floor(vertices / pitch), axis=0, return_inverse=True)
    cell = cell.ravel()
    count = np.bincount(cell)
    mean = np.stack([np.bincount(cell, vertices[:, axis]) / count for axis in range(3)], axis=1)

    a, b, c = (vertices[faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)  # its length weighs the face
    weight = np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-30)
    square = (normal[:, :, None] * normal[:, None] / weight[:, None]).reshape(-1, 9)
    sums = np.zeros((len(count), 12))
    for corner in range(3):
        where = cell[faces[:, corner]]
        height = (normal * (a - mean[where])).sum(1, keepdims=True)
        terms = np.concatenate([square, normal / weight * height], axis=1)
        for i in range(12):
            sums[:, i] += np.bincount(where, terms[:, i], len(count))
    matrix = sums[:, :9].reshape(-1, 3, 3)
    # Along directions that no face fixes, the mean is as good as any.
    hold = 0.01 * np.trace(matrix, axis1=1, axis2=2)[:, None, None] + 1e-30
    shift = np.linalg.solve(matrix + hold * np.eye(3), sums[:, 9:, None])[:, :, 0]

    merged = cell[faces].astype(np.int32)
    a, b, c = merged.T
    kept = np.flatnonzero((a != b) & (b != c) & (c != a))
    kept = kept[np.argsort(-weight[kept, 0], kind="stable")]  # of equal faces, the largest stays
    lowest = merged[kept].argmin(axis=1)[:, None]
    turned = np.take_along_axis(merged[kept], (lowest + np.arange(3)) % 3, axis=1)
    kept = np.sort(kept[np.unique(turned, axis=0, return_index=True)[1]])
    return mean + np.clip(shift, -pitch, pitch), merged[kept], kept


def rgba(model: mujoco.MjModel) -> NDArray[Any]:
    """The geoms' colours; a material's, unless the geom has its own."""
    material = model.geom_matid
    own = (model.geom_rgba != np.array([0.5, 0.5, 0.5, 1], np.float32)).any(axis=1) | (material < 0)
    if not model.nmat:
        return np.asarray(model.geom_rgba)
    return np.where(own[:, None], model.geom_rgba, model.mat_rgba[material])


def _gloss(model: mujoco.MjModel, geom: int) -> tuple[float, float, float]:
    """Specular, exponent and emission as MuJoCo gives them to OpenGL."""
    material = model.geom_matid[geom]
    if material < 0:
        return 0.5, 64.0, 0.0
    shininess = 128 * model.mat_shininess[material]
    return model.mat_specular[material], shininess, model.mat_emission[material]


def _triangles(model: mujoco.MjModel, geom: int, pitch: float) -> Triangles:
    kind, size = mujoco.mjtGeom(model.geom_type[geom]), model.geom_size[geom]
    slices, stacks = model.vis.quality.numslices, model.vis.quality.numstacks
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        return _mesh(model, int(model.geom_dataid[geom]), pitch)
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return _box(size, model.vis.quality.numquads)
    radius, half = size[:2]
    angles = np.linspace(-np.pi / 2, np.pi / 2, stacks + 1)
    outline = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return _turned(radius * outline, outline, slices)
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        middle = len(outline) // 2
        outline = np.insert(outline, middle, outline[middle], axis=0)
        lift = np.where(np.arange(len(outline)) <= middle, -half, half)
        return _turned(radius * outline + np.stack([0 * lift, lift], axis=1), outline, slices)
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        down, out, up = np.array([0.0, -1]), np.array([1.0, 0]), np.array([0.0, 1])
        low, high = np.array([radius, -half]), np.array([radius, half])
        points = np.array([[0, -half], low, low, high, high, [0, half]])
        return _turned(points, np.array([down, down, out, out, up, up]), slices)
    raise AssertionError(kind)  # `Raster` asks before


def _mesh(model: mujoco.MjModel, mesh: int, pitch: float) -> Triangles:
    """With the normals that MuJoCo's pictures have: flat where the smooth one is far off."""
    at, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    vertices = model.mesh_vert[at : at + count].astype(np.float64)
    at, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    faces = model.mesh_face[at : at + count].copy()
    smooth = model.mesh_normal[model.mesh_normaladr[mesh] + model.mesh_facenormal[at : at + count]]
    flat = _flat_normals(vertices, faces)[:, None]
    use_flat = ((smooth * flat).sum(-1, keepdims=True) < CREASE) & (
        model.mesh_texcoordadr[mesh] < 0
    )
    normals = np.where(use_flat, flat, smooth)
    if pitch <= 0:
        return Triangles(vertices, faces, normals)
    vertices, faces, kept = merge(vertices, faces, pitch)
    return Triangles(vertices, faces, normals[kept])


def _flat_normals(vertices: F64, faces: I32) -> F64:
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    return np.asarray(normal / np.maximum(length, 1e-30))


def _box(size: F64, quads: int) -> Triangles:
    parts = []
    grid = np.linspace(-1, 1, quads + 1)
    u, v = (side.ravel() for side in np.meshgrid(grid, grid, indexing="ij"))
    corner = (np.arange(quads)[:, None] * (quads + 1) + np.arange(quads)).ravel()
    right, over, above = corner + quads + 1, corner + quads + 2, corner + 1
    faces = np.concatenate(
        [np.stack([corner, right, over], 1), np.stack([corner, over, above], 1)]
    ).astype(np.int32)
    for axis in range(3):
        for sign in (-1.0, 1.0):
            points = np.empty((len(u), 3))
            points[:, axis] = sign
            points[:, (axis + 1) % 3], points[:, (axis + 2) % 3] = u, sign * v
            normals = np.zeros((len(faces), 3, 3))
            normals[:, :, axis] = sign
            parts.append(Triangles(points * size, faces, normals))
    return _joined(parts)


def _turned(points: F64, normals: F64, slices: int) -> Triangles:
    """The surface of an outline (radius, height), from bottom to top, turned around z."""
    angle = np.arange(slices) * 2 * np.pi / slices
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def turn(pairs: F64) -> F64:
        flat = pairs[:, None, :1] * ring
        return np.concatenate(
            [flat, np.broadcast_to(pairs[:, None, 1:], (*flat.shape[:2], 1))], axis=2
        ).reshape(-1, 3)

    level = np.arange(len(points) - 1)[:, None] * slices
    this, after = level + np.arange(slices), level + (np.arange(slices) + 1) % slices
    faces = np.concatenate(
        [
            np.stack([this, after, after + slices], -1).reshape(-1, 3),
            np.stack([this, after + slices, this + slices], -1).reshape(-1, 3),
        ]
    ).astype(np.int32)
    vertices, turned = turn(points), turn(normals)
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    real = np.linalg.norm(np.cross(b - a, c - a), axis=1) > 1e-12
    return Triangles(vertices, faces[real], turned[faces[real]])


def _joined(parts: list[Triangles]) -> Triangles:
    starts = np.cumsum([0, *(len(part.vertices) for part in parts)])
    return Triangles(
        np.concatenate([part.vertices for part in parts]),
        np.concatenate(
            [part.faces + start for part, start in zip(parts, starts, strict=False)]
        ).astype(np.int32),
        np.concatenate([part.normals for part in parts]),
    )


def _compact(part: Triangles) -> Triangles:
    used, index = np.unique(part.faces, return_inverse=True)
    return Triangles(part.vertices[used], index.reshape(-1, 3).astype(np.int32), part.normals)
