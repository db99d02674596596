"""A robot over Zenoh on this machine: ROS 2 messages, through the real-time controller."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zenoh
from PIL import Image
from rosbags.typesys import Stores, get_typestore

import bilinear_wm as bwm
from bilinear_wm.bridge import NUMBERS, TWIST, BridgeConfig, bridged
from bilinear_wm.data.formats.rosbag import IMAGE
from bilinear_wm.errors import InputError

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "tworoom"
STORE = get_typestore(Stores.ROS2_HUMBLE)
PATIENCE_S = 240
"""For a machine that does other things: nothing here depends on how long it takes."""


def image(pixels: np.ndarray) -> bytes:
    stamp = STORE.types["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    header = STORE.types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
    height, width = pixels.shape[:2]
    made = STORE.types[IMAGE](
        header=header, height=height, width=width, encoding="rgb8", is_bigendian=0,
        step=3 * width, data=np.ascontiguousarray(pixels).ravel(),
    )  # fmt: skip
    return bytes(STORE.serialize_cdr(made, IMAGE))


@pytest.fixture
def endpoint() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp/127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def goal(tmp_path: Path) -> Path:
    """A picture of a place in the same room."""
    task = bwm.make_task("tworoom", 128, "fast")
    Image.fromarray(task.picture(np.array([60.0, 150.0]))).save(tmp_path / "goal.png")
    return tmp_path / "goal.png"


class Robot:
    """TwoRoom at the other end: it acts when it is told to, then looks."""

    def __init__(self, endpoint: str, kind: str) -> None:
        settings = zenoh.Config()
        settings.insert_json5("connect/endpoints", json.dumps([endpoint]))
        settings.insert_json5("scouting/multicast/enabled", "false")
        self.task = bwm.make_task("tworoom", 128, "fast")
        self.task.begin(seed=0, options={"state": (40.0, 90.0), "goal": (60.0, 150.0)})
        self.kind, self.arrived = kind, threading.Event()
        self.actions: list[np.ndarray] = []
        self.session = zenoh.open(settings)
        self.eye = self.session.declare_publisher("camera/image_raw")
        self.ear = self.session.declare_subscriber("cmd", self.obey)

    def look(self) -> None:
        self.eye.put(image(self.task.render()))

    def obey(self, sample: Any) -> None:
        message: Any = STORE.deserialize_cdr(sample.payload.to_bytes(), self.kind)
        if self.kind == TWIST:
            action = np.array([message.linear.x, message.angular.z], np.float32)
        else:
            action = np.asarray(message.data, np.float32)
        self.actions.append(action)
        if self.task.advance(action):
            self.arrived.set()
        self.look()


@pytest.fixture
def robot(endpoint: str) -> Iterator[Callable[[str], Robot]]:
    """One that connects when it is made, once the bridge listens."""
    made: list[Robot] = []

    def begin(kind: str) -> Robot:
        made.append(Robot(endpoint, kind))
        return made[-1]

    yield begin
    for one in made:
        one.session.close()


@pytest.mark.slow
@pytest.mark.parametrize(("message", "kind"), [("numbers", NUMBERS), ("twist", TWIST)])
def test_a_robot_arrives(
    message: Any, kind: str, endpoint: str, goal: Path, robot: Callable[[str], Robot]
) -> None:
    config = BridgeConfig(
        PRETRAINED, goal, action="cmd", message=message, listen=(endpoint,), control_hz=5,
        planner_options={"effort": 5e-3},
    )  # fmt: skip
    with bridged(config) as (controller, counts):
        far = robot(kind)
        far.eye.put(b"nonsense")
        far.look()
        assert far.arrived.wait(PATIENCE_S), (counts, controller.loop.sources)
    assert counts.refused == 1
    assert counts.pictures > 1
    assert np.abs(far.actions).max() <= 1
    # Not by chance: it did not wander.
    assert len([a for a in far.actions if np.abs(a).max() > 0]) < 150


def test_what_cannot_be_is_said(goal: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fields: expected some of linear\.x"):
        BridgeConfig(PRETRAINED, goal, fields=("speed",))
    for config, message in (
        (BridgeConfig(PRETRAINED, tmp_path / "none.png"), "expected a picture"),
        (BridgeConfig(PRETRAINED, goal, message="twist", fields=("linear.x",)), "expected 2, one"),
        (BridgeConfig(PRETRAINED, goal, listen=("nowhere",)), "expected Zenoh endpoints"),
    ):
        with pytest.raises(InputError, match=message), bridged(config):
            pass
