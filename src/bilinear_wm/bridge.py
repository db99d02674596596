"""A robot at the other end of Zenoh: pictures in, actions out, as ROS 2 messages, without ROS.

    bwm bridge --checkpoint runs/drive --goal goal.png --camera camera/image_raw \\
        --action cmd_vel --message twist --fields linear.x angular.z --connect tcp/192.168.1.7:7447

Keys are topics without their leading slash, and payloads the messages in CDR, as the
zenoh-bridge-ros2dds of a robot has them. The real-time controller is in between: an action on
every tick, and a hold when pictures stop.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.control.horizon import LoopConfig
from bilinear_wm.control.realtime import RealTimeController
from bilinear_wm.data.formats.rosbag import COMPRESSED, IMAGE, picture_of
from bilinear_wm.data.formats.source import Fit, Source
from bilinear_wm.errors import InputError, needed
from bilinear_wm.evaluation.load import make_planner_config
from bilinear_wm.models import load_model
from bilinear_wm.planning import PLANNERS
from bilinear_wm.stage import JsonObject, Outcome, at_least

EXTRA = "ros"
TWIST, NUMBERS = "geometry_msgs/msg/Twist", "std_msgs/msg/Float64MultiArray"
AXES = ("linear.x", "linear.y", "linear.z", "angular.x", "angular.y", "angular.z")
POLL_S = 0.05
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BridgeConfig:
    """A robot to drive to a goal picture.

    Attributes:
        checkpoint: The model.
        goal: A picture of where to go, as the camera would see it.
        camera: Key of the camera's pictures (sensor_msgs Image or, with `compressed`,
            CompressedImage).
        action: Key that actions are sent to.
        message: `numbers`, a Float64MultiArray such as an arm's command controller takes, or
            `twist`, such as a mobile base takes.
        fields: Which numbers of a Twist the action's are, in order.
        compressed: Whether the camera sends CompressedImage.
        goal_key: Pictures that arrive here take the goal's place.
        connect: Zenoh endpoints to connect to; by default whoever is found nearby.
        listen: Endpoints to listen on.
        planner: gauss-newton, cem, icem, mppi, adam or one of your own.
        planner_options: Fields of the planner's configuration.
        control_hz: Actions a second.
        horizon: Blocks a plan.
        action_low: Smallest number of an action.
        action_high: Largest.
        fit: How pictures are brought to the model's size: `stretch`, or `crop` the middle.
        seconds: How long; until Ctrl-C by default.
    """

    checkpoint: Path
    goal: Path
    camera: str = "camera/image_raw"
    action: str = "action"
    message: Literal["numbers", "twist"] = "numbers"
    fields: tuple[str, ...] = ("linear.x", "angular.z")
    compressed: bool = False
    goal_key: str | None = None
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    control_hz: float = 10.0
    horizon: int = 5
    planner: str = "gauss-newton"
    planner_options: JsonObject = field(default_factory=dict)
    action_low: float = -1.0
    action_high: float = 1.0
    fit: Fit = "stretch"
    seconds: float | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "horizon")
        unknown = [name for name in self.fields if name not in AXES]
        if unknown:
            raise InputError(f"fields: expected some of {', '.join(AXES)}, found {unknown[0]!r}")

    def run(self) -> Outcome:
        """`bridge`, in words."""
        with bridged(self) as (controller, counts):
            until = None if self.seconds is None else time.monotonic() + self.seconds
            try:
                while controller.running and (until is None or time.monotonic() < until):
                    time.sleep(POLL_S)
            except KeyboardInterrupt:
                pass  # the usual end
        found = {"pictures": counts.pictures, "refused": counts.refused, "actions": counts.actions,
                 "sources": dict(controller.loop.sources)}  # fmt: skip
        return Outcome(
            f"{counts.pictures} pictures came ({counts.refused} refused), {counts.actions} actions "
            f"went out: {found['sources']}",
            found,
        )


@dataclass
class Counts:
    """What has passed over the bridge."""

    pictures: int = 0
    refused: int = 0
    actions: int = 0


@contextmanager
def bridged(config: BridgeConfig) -> Iterator[tuple[RealTimeController, Counts]]:
    """The controller between a camera and an actuator, while the context lasts."""
    zenoh, types = (needed(name, EXTRA, "bridge") for name in ("zenoh", "rosbags.typesys"))
    store = types.get_typestore(types.Stores.ROS2_HUMBLE)
    model = load_model(config.checkpoint).eval()
    model.config.observes.must_be_picture("bridge")
    if config.message == "twist" and len(config.fields) != model.config.action_size:
        raise InputError(
            f"fields: expected {model.config.action_size}, one for each number of an action, found "
            f"{', '.join(config.fields)}"
        )
    planner = PLANNERS[config.planner](
        model.dynamics, make_planner_config(config.planner, config.planner_options)
    )
    fitted = Source(Path("camera"), size=model.config.picture_shape, fit=config.fit)
    counts, said = Counts(), threading.Event()

    def received(sample: Any) -> NDArray[np.uint8] | None:
        """The picture in a message, in the model's size; what is none is counted and left."""
        try:
            kind = COMPRESSED if config.compressed else IMAGE
            message = store.deserialize_cdr(sample.payload.to_bytes(), kind)
            picture = fitted.fitted(picture_of(message, str(sample.key_expr))[None])[0]
        except Exception as error:  # a robot goes on, whatever somebody sends
            counts.refused += 1
            if not said.is_set():
                log.warning("%s: not a picture: %s", sample.key_expr, error)
                said.set()
            return None
        return picture

    def look(sample: Any) -> None:
        picture = received(sample)
        if picture is not None:
            counts.pictures += 1
            controller.observe(picture)

    def aim(sample: Any) -> None:
        picture = received(sample)
        if picture is not None:
            controller.set_goal(picture)

    def act(action: NDArray[Any]) -> None:
        publisher.put(bytes(_command(store, config, action)))
        counts.actions += 1

    controller = RealTimeController(
        model,
        planner,
        config.control_hz,
        LoopConfig(horizon=config.horizon, replan="always"),
        act=act,
        action_low=config.action_low,
        action_high=config.action_high,
    )
    controller.set_goal(fitted.fitted(_read_picture(config.goal)[None])[0])
    with _session(zenoh, config) as session:
        publisher = session.declare_publisher(config.action)
        subscribers = [session.declare_subscriber(config.camera, look)]
        if config.goal_key is not None:
            subscribers.append(session.declare_subscriber(config.goal_key, aim))
        with controller:
            yield controller, counts
        for subscriber in subscribers:
            subscriber.undeclare()


def _session(zenoh: Any, config: BridgeConfig) -> Any:
    settings = zenoh.Config()
    try:
        for name, endpoints in (("connect", config.connect), ("listen", config.listen)):
            if endpoints:
                settings.insert_json5(f"{name}/endpoints", json.dumps(endpoints))
        if config.connect or config.listen:
            settings.insert_json5("scouting/multicast/enabled", "false")
        return zenoh.open(settings)
    except zenoh.ZError as error:
        raise InputError(
            "connect, listen: expected Zenoh endpoints such as tcp/192.168.1.7:7447 that answer, "
            f"found {(*config.connect, *config.listen)} ({' '.join(str(error).split())[:120]})"
        ) from error


def _command(store: Any, config: BridgeConfig, action: NDArray[Any]) -> Any:
    """An action as a message."""
    if config.message == "numbers":
        layout = store.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
        numbers = store.types[NUMBERS](layout=layout, data=np.asarray(action, np.float64))
        return store.serialize_cdr(numbers, NUMBERS)
    values = dict.fromkeys(AXES, 0.0) | {
        name: float(value) for name, value in zip(config.fields, action, strict=True)
    }
    vector = store.types["geometry_msgs/msg/Vector3"]
    linear, angular = (
        vector(*(values[f"{part}.{axis}"] for axis in "xyz")) for part in ("linear", "angular")
    )
    return store.serialize_cdr(store.types[TWIST](linear=linear, angular=angular), TWIST)


def _read_picture(path: Path) -> NDArray[np.uint8]:
    image = needed("PIL.Image", EXTRA, "bridge")
    try:
        with image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise InputError(f"goal {path}: expected a picture, found {error}") from error
