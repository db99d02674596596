"""Pictures of MuJoCo scenes as MuJoCo draws them, several times faster on a CPU.

MuJoCo's software pictures spend their time on the floor, sample by sample and light by light,
and on the shadow map. But floor and sky never change: MuJoCo draws them once, with the light that
casts shadows and without. A picture then is made of

- the shadow map: what that light sees of the solids, over their extent alone;
- the nearest face of each of four samples a pixel, where MuJoCo's OpenGL has them;
- colours at the middle of each pixel: of a face, interpolated from its corners, which are lit as
  OpenGL's fixed pipeline lights them; elsewhere one of the two pictures of the floor.

Left out is what a floor reflects of the solids.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.tasks.base import Pixels
from bilinear_wm.tasks.graphics import Canvas, mujoco
from bilinear_wm.tasks.solid import F32, F64, I32, PLANE, Solid, make_solid, rgba, shown

SAMPLES = np.array([[0.375, 0.875], [0.875, 0.625], [0.125, 0.375], [0.625, 0.125]], np.float32)
"""Of Mesa's software OpenGL: column and row in a pixel."""
SHADOW_TEXELS = 4
"""Of the shadow map, for each pixel's width."""
FAR = 1e6
KNOWN = tuple(
    getattr(mujoco.mjtGeom, f"mjGEOM_{name}")
    for name in ("PLANE", "MESH", "BOX", "SPHERE", "CAPSULE", "CYLINDER")
)


class View(NamedTuple):
    """The camera."""

    eye: F32  # (3)
    axes: F32  # (3, 3): rows to the right, up and back
    focal: np.float32  # in pixels
    middle: np.float32
    samples: F32  # (4, 2)


class Lamp(NamedTuple):
    """The light that casts shadows, as a camera."""

    eye: F32
    axes: F32
    parallel: bool
    reach: np.float32  # MuJoCo's shadow map ends here
    finest: np.float32  # texels a unit, at most


class Lights(NamedTuple):
    """All lights, by rows; the head light is one of them."""

    parallel: NDArray[np.bool_]
    shadow: NDArray[np.bool_]
    pos: F32
    dir: F32
    ambient: F32
    diffuse: F32
    specular: F32
    attenuation: F32
    cone: F32  # cosine of its half angle; -1 if it shines everywhere
    exponent: F32


class Scenery(NamedTuple):
    """What never changes: planes and sky."""

    colour: NDArray[np.uint8]  # (2, size, size, 3): in the shadow, in the light
    near: F32  # (4, size, size): 1 / depth of every sample
    light: F32  # (size * size, 3): where the lamp sees the middles of the pixels


class Space(NamedTuple):
    """What is written while drawing."""

    points: F32  # (v, 9): vertices, see `_raster.place`
    window: F32  # (3): corner of the shadow map and texels a unit
    shadow: F32  # the map
    near: F32  # (4, size, size)
    ids: I32  # (4, size, size): faces
    seen: NDArray[np.bool_]  # (f)
    corners: F32  # (3 f, 6): colours without the lamp, and from it alone


def beyond_raster(model: mujoco.MjModel, camera: str | int) -> str:
    """What of a scene `Raster` does not draw; empty if it draws it all."""
    if not (hasattr(model, "cam_projection") and hasattr(model, "light_type")):
        return "models of this older MuJoCo"
    eye, geoms = model.cam(camera).id, shown(model)
    solids = [geom for geom in geoms if model.geom_type[geom] != PLANE]
    materials = [material for material in model.geom_matid[solids] if material >= 0]
    lights = np.flatnonzero(model.light_active)
    still = model.body_weldid == 0
    checks = {
        "a camera that moves": not still[model.cam_bodyid[eye]] or model.cam_mode[eye],
        "an orthographic camera": model.cam_projection[eye],
        "lights that move": not still[model.light_bodyid[lights]].all()
        or model.light_mode[lights].any(),
        "other than one light with shadows": model.light_castshadow[lights].sum() != 1,
        "planes that move": not still[model.geom_bodyid[list(set(geoms) - set(solids))]].all(),
        "no solid": not solids,
        "other solids": not np.isin(model.geom_type[geoms], KNOWN).all(),
        "transparent solids": (rgba(model)[geoms, 3] < 1).any(),
        "textures on solids": (model.mat_texid[materials] >= 0).any(),
        "mirroring solids": model.mat_reflectance[materials].any(),
        "sites": (model.site_group < 3).any(),
        "tendons": (model.wrap_type != mujoco.mjtWrap.mjWRAP_JOINT).any(),
        "skins or flexes": model.nskin + model.nflex,
    }
    return ", ".join(name for name, holds in checks.items() if holds)


class Raster:
    """Draws states of one MuJoCo model from one camera; threads may share it.

    Args:
        model: A scene for which `beyond_raster` is empty.
        camera: Name or index of the camera.
        image_size: Height and width of the picture.
        pitch: Mesh vertices are merged in cells of this width (metres); 0 keeps all.
    """

    def __init__(
        self, model: mujoco.MjModel, camera: str | int, image_size: int, pitch: float
    ) -> None:
        from bilinear_wm.tasks import _raster

        self._compiled = _raster
        self._model, self._size = model, image_size
        self._local = threading.local()
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self._solid = make_solid(model, pitch)
        self._view = _view(model, data, model.cam(camera).id, image_size)
        self._lights = _lights(model, data, self._view)
        self._lamp = _lamp(model, data, self._view, self._solid)
        self._scenery = self._make_scenery(data, camera)

    def picture(self, qpos: NDArray[np.float64]) -> Pixels:
        """The scene with its joints at `qpos`; from any thread."""
        data, space = self._memory()
        data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, data)
        geoms = self._solid.geoms
        pos = data.geom_xpos[geoms].astype(np.float32)
        mat = data.geom_xmat[geoms].reshape(-1, 3, 3).astype(np.float32)
        pixels = np.empty((self._size, self._size, 3), np.uint8)
        self._compiled.draw(
            self._solid, pos, mat, self._view, self._lamp, self._lights, self._scenery, space,
            pixels,
        )  # fmt: skip
        return pixels

    def _memory(self) -> tuple[Any, Space]:
        """This thread's own."""
        if not hasattr(self._local, "space"):
            self._local.data = mujoco.MjData(self._model)
            self._local.space = _space(self._solid, self._size)
        return self._local.data, self._local.space

    def _make_scenery(self, data: Any, camera: str | int) -> Scenery:
        bare = copy.copy(self._model)
        bare.geom_group[bare.geom_type != PLANE] = mujoco.mjNGROUP - 1  # not drawn
        bare.mesh_facenum[:] = 0  # nor prepared
        canvas = Canvas(bare, camera, self._size)
        bright = canvas.picture(data.qpos)
        bare.light_active[bare.light_castshadow.astype(bool)] = 0
        dark = canvas.picture(data.qpos)
        canvas.close()

        def depth(dx: float, dy: float) -> tuple[F64, F64]:
            rays = _rays(self._view, dx, dy)
            return rays, _depth(self._model, data, self._view, rays)

        near = np.stack([1 / depth(*sample)[1] for sample in SAMPLES])
        rays, far = depth(0.5, 0.5)
        points = self._view.eye + far[..., None] * rays
        light = np.empty((self._size * self._size, 3), np.float32)
        self._compiled.aim(self._lamp, points.reshape(-1, 3).astype(np.float32), light)
        return Scenery(np.stack([dark, bright]), near.astype(np.float32), light)


def _view(model: mujoco.MjModel, data: Any, camera: int, size: int) -> View:
    focal = size / 2 / np.tan(np.deg2rad(model.cam_fovy[camera]) / 2)
    axes = np.ascontiguousarray(data.cam_xmat[camera].reshape(3, 3).T, np.float32)
    eye = data.cam_xpos[camera].astype(np.float32)
    return View(eye, axes, np.float32(focal), np.float32(size / 2), SAMPLES)


def _rays(view: View, dx: float, dy: float) -> F64:
    """(size, size, 3): directions of depth one, through that place of every pixel."""
    steps = np.arange(int(2 * view.middle)) - float(view.middle)
    across, down = (steps + dx) / float(view.focal), (steps + dy) / float(view.focal)
    right, up, back = view.axes.astype(np.float64)
    return np.asarray(across[None, :, None] * right - down[:, None, None] * up - back)


def _depth(model: mujoco.MjModel, data: Any, view: View, rays: F64) -> F64:
    """How far along these rays of the camera the first plane is, or `FAR`."""
    nearest = np.full(rays.shape[:2], FAR)
    eye = view.eye.astype(np.float64)
    for plane in (geom for geom in shown(model) if model.geom_type[geom] == PLANE):
        axes, offset = data.geom_xmat[plane].reshape(3, 3), data.geom_xpos[plane] - eye
        falling = np.minimum(rays @ axes[:, 2], -1e-9)  # a plane is seen from above
        depth = offset @ axes[:, 2] / falling
        place = np.abs((depth[..., None] * rays - offset) @ axes[:, :2])
        half = np.where(model.geom_size[plane, :2] > 0, model.geom_size[plane, :2], np.inf)
        hit = (depth > 0) & (depth < nearest) & (place <= half).all(axis=-1)
        nearest[hit] = depth[hit]
    return nearest


def _lights(model: mujoco.MjModel, data: Any, view: View) -> Lights:
    rows: list[tuple[Any, ...]] = []
    head = model.vis.headlight
    if head.active:
        rows.append((True, False, view.eye, -view.axes[2], head.ambient, head.diffuse,
                     head.specular, (1, 0, 0), -1, 0))  # fmt: skip
    for i in np.flatnonzero(model.light_active):
        # OpenGL refuses angles between 90 and 180 degrees, which leaves it a light to all sides.
        angle = model.light_cutoff[i]
        rows.append((
            model.light_type[i] == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            model.light_castshadow[i], data.light_xpos[i], data.light_xdir[i],
            model.light_ambient[i], model.light_diffuse[i], model.light_specular[i],
            model.light_attenuation[i], np.cos(np.deg2rad(angle)) if angle <= 90 else -1,
            model.light_exponent[i],
        ))  # fmt: skip
    columns = list(zip(*rows, strict=True))
    flags, numbers = columns[:2], columns[2:]
    return Lights(
        *(np.array(flag, bool) for flag in flags),
        *(np.array(number, np.float32) for number in numbers),
    )


def _lamp(model: mujoco.MjModel, data: Any, view: View, solid: Solid) -> Lamp:
    light = int(np.flatnonzero(model.light_active * model.light_castshadow)[0])
    back = -data.light_xdir[light] / np.linalg.norm(data.light_xdir[light])
    side = np.cross(np.eye(3)[np.abs(back).argmin()], back)
    side /= np.linalg.norm(side)
    axes = np.stack([side, np.cross(back, side), back]).astype(np.float32)
    parallel = model.light_type[light] == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    if parallel:
        reach = model.vis.map.shadowclip * model.stat.extent
    else:
        angle = min(2 * model.light_cutoff[light] * model.vis.map.shadowscale, 160)
        reach = np.tan(np.deg2rad(angle) / 2)
    eye = data.light_xpos[light].astype(np.float32)
    middle = data.geom_xpos[solid.geoms].mean(axis=0)
    finest = SHADOW_TEXELS * view.focal / abs(view.axes[2] @ (middle - view.eye))
    if not parallel:
        finest *= abs(axes[2] @ (middle - eye))
    return Lamp(eye, axes, bool(parallel), np.float32(reach), np.float32(finest))


def _space(solid: Solid, size: int) -> Space:
    faces = len(solid.faces)
    return Space(
        np.empty((len(solid.vertices), 9), np.float32),
        np.empty(3, np.float32),
        np.empty((SHADOW_TEXELS * size, SHADOW_TEXELS * size), np.float32),
        np.empty((len(SAMPLES), size, size), np.float32),
        np.empty((len(SAMPLES), size, size), np.int32),
        np.empty(faces, np.bool_),
        np.empty((3 * faces, 6), np.float32),
    )
