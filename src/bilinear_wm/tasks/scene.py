"""Pictures of MuJoCo scenes in both qualities.

`faithful` pictures are MuJoCo's. In software that takes long: the shadow map, the mesh faces and
every sample of the floor under each light. `fast` ones are drawn by `Raster`, where numba is
installed and the scene is one that it knows; otherwise by MuJoCo with a smaller shadow map and
fewer faces.
"""

from __future__ import annotations

import copy
import logging
import os
import sys

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError
from bilinear_wm.tasks.base import Pixels, RenderQuality
from bilinear_wm.tasks.graphics import Canvas, mujoco as mujoco, painter
from bilinear_wm.tasks.raster import Raster, beyond_raster
from bilinear_wm.tasks.solid import merge

log = logging.getLogger(__name__)

SMALL_SHADOW_MAP = 256


class Scene:
    """Draws states of one MuJoCo model from one camera, beside the running simulation.

    Args:
        model: The simulated model; a copy of it is drawn.
        camera: Name or index of the camera.
        image_size: Height and width of the picture.
        quality: See `Task`.
        fast_pitch: In `fast`, mesh vertices are merged in cells of this width (metres).
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str | int,
        image_size: int,
        quality: RenderQuality,
        fast_pitch: float = 0.0,
    ) -> None:
        self._model, self._camera, self._image_size = copy.copy(model), camera, image_size
        self._fast, self._pitch = quality == "fast", fast_pitch
        self._drawer: Canvas | Raster | None = None

    def picture(self, qpos: NDArray[np.float64]) -> Pixels:
        """The scene with its joints at `qpos`; from any thread."""
        if self._drawer is None:
            painter(os.getpid()).do(self._prepare)
        assert self._drawer is not None
        return self._drawer.picture(qpos)

    def _prepare(self) -> None:
        """In the painter's thread, so that it happens once."""
        if self._drawer is not None:
            return
        if self._fast and _numba_is_there() and not beyond_raster(self._model, self._camera):
            self._drawer = Raster(self._model, self._camera, self._image_size, self._pitch)
            return
        if self._fast:
            self._model.vis.quality.shadowsize = SMALL_SHADOW_MAP
            if self._pitch > 0:
                _merge_meshes(self._model, self._pitch)
        self._drawer = Canvas(self._model, self._camera, self._image_size)

    def close(self) -> None:
        """Free the graphics context."""
        if isinstance(self._drawer, Canvas):
            self._drawer.close()


def _numba_is_there() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        log.warning(
            "numba is not installed: fast pictures are drawn by MuJoCo, several times slower; "
            "pip install 'bilinear-world-models[fast]'"
        )
        return False
    return True


def _merge_meshes(model: mujoco.MjModel, pitch: float) -> None:
    """Coarser meshes in place; `model` must be a copy that is never simulated."""
    for mesh in range(model.nmesh):
        at, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        vertices = model.mesh_vert[at : at + count]
        at, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        faces, normals = model.mesh_face[at : at + count], model.mesh_facenormal[at : at + count]
        fewer, merged, kept = merge(vertices.astype(np.float64), faces, pitch)
        vertices[: len(fewer)] = fewer
        faces[: len(kept)], normals[: len(kept)] = merged, normals[kept]
        model.mesh_facenum[mesh] = len(kept)


if __name__ == "__main__":  # used by `make` to check a machine before anything else runs
    tiny = mujoco.MjModel.from_xml_string("<mujoco><worldbody><camera/></worldbody></mujoco>")
    try:
        Scene(tiny, 0, 8, "faithful").picture(np.zeros(0))
    except InputError as problem:
        sys.exit(str(problem))
