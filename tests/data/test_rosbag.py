"""ROS 2 recordings as episodes: bags written by rosbags, topics at different rates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.data.windows import EpisodeDataset
from bilinear_wm.errors import InputError
from bilinear_wm.observation import ObservationSpec

STORE = get_typestore(Stores.ROS2_HUMBLE)
MS = 1_000_000
PICTURES = (8, 6)
QUERY = "?camera=/camera&action=/cmd_vel&state=/odom.pose.pose.position.x"


def message(kind: str, **values: Any) -> Any:
    return STORE.types[kind](**values)


def header() -> Any:
    stamp = message("builtin_interfaces/msg/Time", sec=0, nanosec=0)
    return message("std_msgs/msg/Header", stamp=stamp, frame_id="")


def image(value: int, encoding: str = "rgb8") -> Any:
    """4 high and 6 wide, with three bytes of padding a row: red has the value, blue is 7."""
    rows = np.zeros((4, 21), np.uint8)
    red, blue = (0, 2) if encoding == "rgb8" else (2, 0)
    rows[:, red:18:3], rows[:, blue:18:3] = value, 7
    return message(
        "sensor_msgs/msg/Image", header=header(), height=4, width=6, encoding=encoding,
        is_bigendian=0, step=21, data=rows.ravel(),
    )  # fmt: skip


def vector(x: float, y: float = 0.0, z: float = 0.0) -> Any:
    return message("geometry_msgs/msg/Vector3", x=x, y=y, z=z)


def twist(x: float) -> Any:
    return message("geometry_msgs/msg/Twist", linear=vector(x), angular=vector(0, 0, -x))


def odometry(x: float) -> Any:
    point = message("geometry_msgs/msg/Point", x=x, y=0.0, z=0.0)
    turn = message("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
    pose = message("geometry_msgs/msg/Pose", position=point, orientation=turn)
    sure = np.zeros(36)
    return message(
        "nav_msgs/msg/Odometry", header=header(), child_frame_id="base",
        pose=message("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=sure),
        twist=message("geometry_msgs/msg/TwistWithCovariance", twist=twist(0.0), covariance=sure),
    )  # fmt: skip


def record(path: Path, episode: int, pictures: int, plugin: StoragePlugin, **more: Any) -> None:
    """A picture every 100 ms, a command 20 ms after each, a position every 30 ms."""
    kinds = {
        "/camera": "sensor_msgs/msg/Image",
        "/rear": "sensor_msgs/msg/Image",
        "/cmd_vel": "geometry_msgs/msg/Twist",
        "/odom": "nav_msgs/msg/Odometry",
    }
    sent = []
    for i in range(pictures):
        sent.append((100 * i, "/camera", image(10 * i + episode)))
        sent.append((100 * i + 20, "/cmd_vel", twist(i + 0.5 * episode)))
    sent += [(50 * i, "/rear", image(5 * i, "bgr8")) for i in range(2 * pictures)]
    sent += [(30 * i, "/odom", odometry(0.3 * i)) for i in range(4 * pictures)]
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        topics = {t: writer.add_connection(t, k, typestore=STORE) for t, k in kinds.items()}
        for time, topic, content in sorted(sent, key=lambda one: one[0]):
            raw = STORE.serialize_cdr(content, kinds[topic])
            writer.write(topics[topic], time * MS, raw)


@pytest.fixture(scope="module", params=[StoragePlugin.MCAP, StoragePlugin.SQLITE3])
def bags(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bags")
    for episode, pictures in enumerate(PICTURES):
        record(folder / f"drive-{episode}", episode, pictures, request.param)
    return folder


def test_a_bag_is_an_episode(bags: Path) -> None:
    file = EpisodeFile(f"{bags}{QUERY}")
    assert file.format == "rosbag"
    # The first command comes after the first picture, which is left out.
    assert file.lengths.tolist() == [count - 1 for count in PICTURES]
    assert file.picture_shape == (4, 6)
    for episode, length in enumerate(file.lengths):
        steps = 1 + np.arange(length)
        frames = file.read_frames(episode)
        np.testing.assert_array_equal(frames[:, 2, 3, 0], 10 * steps + episode)
        assert (frames[..., 2] == 7).all()
        rows = slice(file.offsets[episode], file.offsets[episode] + length)
        # Sent 20 ms after its picture, held until 20 ms after the next.
        np.testing.assert_allclose(file.actions[rows, 0], steps + 0.5 * episode)
        np.testing.assert_allclose(file.actions[rows, 5], -(steps + 0.5 * episode))
        last = (100 * steps) // 30
        np.testing.assert_allclose(file.episode_states(episode)[:, 0], 0.3 * last)


def test_other_cameras_and_numbers_join(bags: Path) -> None:
    spec = ObservationSpec(("pixels", "/rear"), ("/cmd_vel.angular.z",))
    data = EpisodeDataset(f"{bags}{QUERY}", 2, frame_skip=2, spec=spec, split="all")
    seen = data.batch([0]).observation
    assert seen.pictures["pixels"][0, :, 0, 0, 0].tolist() == [10, 30]
    assert seen.pictures["/rear"][0, :, 0, 0, 0].tolist() == [10, 30]
    # A sensor has its last message until then: the command of the picture before.
    np.testing.assert_allclose(seen.proprioception[0, :, 0], [0, -2])


def test_one_recording_by_itself(bags: Path) -> None:
    assert EpisodeFile(f"{bags / 'drive-1'}{QUERY}").lengths.tolist() == [PICTURES[1] - 1]


def test_what_is_missing_is_said(bags: Path, tmp_path: Path) -> None:
    for query, wanted in (
        ("?camera=/camera", "column 'action': expected it to exist, found only /camera"),
        ("?action=/cmd_vel", "camera: expected one of /camera, /rear, found none chosen"),
        ("?camera=/camera&action=/camera", r"column '/camera': expected floats"),
    ):
        with pytest.raises(InputError, match=wanted):
            EpisodeFile(f"{bags}{query}")
    broken = Path(shutil.copytree(bags / "drive-0", tmp_path / "broken"))
    for part in broken.iterdir():
        if part.suffix in (".mcap", ".db3"):
            part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(InputError, match="bag broken: expected a readable recording") as caught:
        EpisodeFile(f"{broken}{QUERY}")
    assert "\n" not in str(caught.value)
