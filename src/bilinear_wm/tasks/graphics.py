"""MuJoCo's own pictures, without a screen."""

from __future__ import annotations

import atexit
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
from bilinear_wm.tasks.base import Pixels

GL_PACKAGES = "apt-get install libegl1 libgl1 libgl1-mesa-dri  (Debian, Ubuntu)"

if sys.platform == "linux" and "DISPLAY" not in os.environ:
    os.environ.setdefault("MUJOCO_GL", "egl")
    # Mesa draws in the calling thread: several processes use the cores better than its threads.
    os.environ.setdefault("LP_NUM_THREADS", "0")

import mujoco as mujoco  # noqa: E402  (reads MUJOCO_GL when imported)


class Canvas:
    """Draws states of one MuJoCo model from one camera by OpenGL.

    Args:
        model: What is drawn; never simulated.
        camera: Name or index of the camera.
        image_size: Height and width of the picture.
    """

    def __init__(self, model: mujoco.MjModel, camera: str | int, image_size: int) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        model.vis.global_.offwidth = model.vis.global_.offheight = image_size
        self._camera = camera
        self._image_size = image_size
        self._renderer: mujoco.Renderer | None = None
        self._free: Callable[[], object] = lambda: None

    def picture(self, qpos: NDArray[np.float64]) -> Pixels:
        """The scene with its joints at `qpos`; from any thread."""
        pixels: Pixels = painter(os.getpid()).do(lambda: self._draw(qpos))
        return pixels

    def _draw(self, qpos: NDArray[np.float64]) -> Pixels:
        if self._renderer is None:
            self._renderer = self._make_renderer()
            self._free = weakref.finalize(self, painter(os.getpid()).do, self._renderer.close)
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
def painter(process: int) -> _Painter:
    """The painter of this process; a forked one needs its own."""
    return _Painter()
