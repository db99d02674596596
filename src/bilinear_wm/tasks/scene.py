"""Pictures of MuJoCo scenes, without a screen.

Software rendering is dominated by the shadow map and by the number of mesh faces, hardly
by the size of the picture. `fast` therefore shrinks the shadow map, merges mesh vertices
that lie closer together than a fraction of a pixel shows, and may drop multisampling.
"""

from __future__ import annotations

import atexit
import copy
import functools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError
from bilinear_wm.tasks.base import Pixels, RenderQuality

FAST_SHADOW_MAP = 256
GL_PACKAGES = "apt-get install libegl1 libgl1 libgl1-mesa-dri  (Debian, Ubuntu)"

if sys.platform == "linux" and "DISPLAY" not in os.environ:
    os.environ.setdefault("MUJOCO_GL", "egl")
    # Mesa draws in the calling thread: several processes use the cores better than its threads.
    os.environ.setdefault("LP_NUM_THREADS", "0")

import mujoco as mujoco  # noqa: E402  (reads MUJOCO_GL when imported)


class Scene:
    """Draws states of one MuJoCo model from one camera, beside the running simulation.

    Args:
        model: The simulated model; a copy of it is drawn.
        camera: Name or index of the camera.
        image_size: Height and width of the picture.
        quality: See `Task`.
        fast_samples: In `fast`, samples a pixel (0: one, without smoothed edges).
        fast_merge: In `fast`, mesh vertices closer than this (metres) become one; 0 keeps all.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str | int,
        image_size: int,
        quality: RenderQuality,
        fast_samples: int = 0,
        fast_merge: float = 0.0,
    ) -> None:
        self._model = copy.copy(model)
        self._model.vis.global_.offwidth = image_size
        self._model.vis.global_.offheight = image_size
        if quality == "fast":
            self._model.vis.quality.shadowsize = FAST_SHADOW_MAP
            self._model.vis.quality.offsamples = fast_samples
            if fast_merge > 0:
                _simplify_meshes(self._model, fast_merge)
        self._data = mujoco.MjData(self._model)
        self._camera = camera
        self._image_size = image_size
        self._renderer: mujoco.Renderer | None = None
        self._free: Callable[[], object] = lambda: None

    def picture(self, qpos: NDArray[np.float64]) -> Pixels:
        """The scene with its joints at `qpos`; from any thread."""
        return _painter(os.getpid()).do(lambda: self._draw(qpos))

    def _draw(self, qpos: NDArray[np.float64]) -> Pixels:
        if self._renderer is None:
            self._renderer = self._make_renderer()
            self._free = weakref.finalize(self, _painter(os.getpid()).do, self._renderer.close)
            # MuJoCo ends EGL at exit; what is registered after that, here, runs before it.
            atexit.register(self._free)
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        pixels: Pixels = self._renderer.render()
        return pixels

    def close(self) -> None:
        """Free the graphics context."""
        self._free()
        self._renderer = None

    def _make_renderer(self) -> mujoco.Renderer:
        try:
            return mujoco.Renderer(self._model, self._image_size, self._image_size)
        except Exception as error:  # each GL backend fails with its own type
            raise InputError(
                f"MuJoCo cannot draw (MUJOCO_GL={os.environ.get('MUJOCO_GL', 'unset')}): "
                f"{type(error).__name__}: {error}. Headless drawing needs EGL: {GL_PACKAGES}"
            ) from error


class _Painter:
    """One thread that owns every graphics context, because they must not change threads."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        # A daemon: it still works while contexts are freed at exit.
        self._thread = threading.Thread(target=self._work, name="bwm-draw", daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Any]) -> Any:
        """Do it in that thread, and wait for the result."""
        if threading.current_thread() is self._thread:
            return work()
        result: Future[Any] = Future()
        self._jobs.put((work, result))
        return result.result()

    def _work(self) -> None:
        while True:
            work, result = self._jobs.get()
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)
            del work, result  # keep nothing alive while waiting


@functools.cache
def _painter(process: int) -> _Painter:
    """The painter of this process; a forked one needs its own."""
    return _Painter()


def _simplify_meshes(model: mujoco.MjModel, distance: float) -> None:
    """Merge close vertices of every mesh in place, and drop the faces that vanish.

    Vertices in one cell of a grid of pitch `distance` share the one nearest to their mean.
    Only what is drawn changes: `model` must be a copy that is never simulated.
    """
    for mesh in range(model.nmesh):
        vertices = _rows(model.mesh_vert, model.mesh_vertadr[mesh], model.mesh_vertnum[mesh])
        faces = _rows(model.mesh_face, model.mesh_faceadr[mesh], model.mesh_facenum[mesh])
        normals = _rows(model.mesh_facenormal, model.mesh_faceadr[mesh], model.mesh_facenum[mesh])

        _, cell = np.unique(np.floor(vertices / distance), axis=0, return_inverse=True)
        cell = cell.ravel()
        count = np.bincount(cell)
        mean = np.stack([np.bincount(cell, vertices[:, axis]) / count for axis in range(3)], axis=1)
        offset = np.linalg.norm(vertices - mean[cell], axis=1)
        keeper = np.empty(len(count), faces.dtype)
        farthest_first = np.argsort(-offset, kind="stable")
        keeper[cell[farthest_first]] = farthest_first  # the nearest is written last

        merged = keeper[cell][faces]
        a, b, c = merged.T
        alive = (a != b) & (b != c) & (c != a)
        _, first = np.unique(np.sort(merged[alive], axis=1), axis=0, return_index=True)
        kept = np.flatnonzero(alive)[np.sort(first)]
        faces[: len(kept)] = merged[kept]
        normals[: len(kept)] = normals[kept]
        model.mesh_facenum[mesh] = len(kept)


def _rows(array: NDArray[Any], start: int, count: int) -> NDArray[Any]:
    return array[start : start + count]


if __name__ == "__main__":  # used by `make` to check a machine before anything else runs
    tiny = mujoco.MjModel.from_xml_string("<mujoco><worldbody><camera/></worldbody></mujoco>")
    try:
        Scene(tiny, 0, 8, "fast").picture(np.zeros(0))
    except InputError as problem:
        sys.exit(str(problem))
