"""ROS 2 recordings (rosbag2, MCAP or SQLite), read without ROS. A bag is an episode.

    --data 'drives?camera=/camera/image_raw&action=/cmd_vel&state=/odom.pose.pose.position.x'

A folder of bags holds as many episodes. Topics are columns: pictures (`sensor_msgs` Image and
CompressedImage), and all other messages as the numbers in them, side by side, each with a name
(`/cmd_vel.linear.x`). Stamps and texts are left out.

Topics come at their own rates. A row is a picture of the slowest camera. Every other camera and
sensor has its last message until then, and the action of a row is the command that holds halfway
to the next picture: it may have been sent a little before or a little after the picture came. Rows
before every topic has spoken are left out.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.formats.base import Format, one_line
from bilinear_wm.errors import InputError, needed

EXTRA = "ros"
IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
LAYOUTS = {"rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)),
           "bgra8": (4, (2, 1, 0)), "mono8": (1, (0, 0, 0))}  # fmt: skip
"""Bytes a pixel, and where red, green and blue are among them."""
LEFT_OUT = ("header", "stamp", "layout")
Times = NDArray[np.int64]


class Rosbag(Format):
    """One bag, or a folder of them."""

    name = "rosbag"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._bags = _bags(path)
        read = [self._read_bag(bag) for bag in self._bags]
        topics = set.intersection(*(set(numbers) | set(times) for times, numbers, _ in read))
        cameras = sorted(topics & set(read[0][0]))
        sensors = sorted(topics & set(read[0][1]))
        if not cameras:
            raise self.fail("topics", f"pictures ({IMAGE}) in every bag", ", ".join(sorted(topics)))
        parts = zip(self._bags, read, strict=True)
        self._times = [self._rows(bag, *found[:2], cameras, sensors) for bag, found in parts]
        self._seen = [times for times, _, _ in read]
        self._told = [numbers for _, numbers, _ in read]
        self._rows_total = sum(map(len, self._times))
        for camera in cameras:
            shape = self._pictures(0, camera, self._times[0][:1]).shape[1:]
            self.columns[camera] = (self._rows_total, *shape), "uint8"
        names = {}
        for sensor in sensors:
            sizes = {values.shape[1] for _, told, _ in read for _, values in [told[sensor]]}
            if len(sizes) == 1:
                self.columns[sensor] = (self._rows_total, sizes.pop()), "float64"
                names[sensor] = read[0][2][sensor]
        self.element_names = names

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return bool(_bags(path))

    @property
    def num_rows(self) -> int:
        return self._rows_total

    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = np.array([len(times) for times in self._times], np.int64)
        return lengths, np.cumsum(lengths) - lengths

    def read(self, column: str, first: int, last: int) -> NDArray[Any]:
        if len(self.columns[column][0]) == 2:
            return np.concatenate(
                [_held(told[column], times)
                 for told, times in zip(self._told, self._times, strict=True)]
            )[first:last]  # fmt: skip
        _, begins = self.index()
        bag = int(np.searchsorted(begins, first, side="right")) - 1
        rows = slice(first - int(begins[bag]), last - int(begins[bag]))
        return self._pictures(bag, column, self._times[bag][rows])

    def read_actions(self, column: str) -> NDArray[Any]:
        """Commands that hold halfway to the next picture."""
        parts = []
        for told, times in zip(self._told, self._times, strict=True):
            ends = np.append(times[1:], 2 * times[-1:] - times[-2:-1])
            parts.append(_held(told[column], times + (ends - times) // 2))
        return np.concatenate(parts)

    # Inside.

    def _open(self, bag: Path) -> Any:
        rosbags = needed("rosbags.highlevel", EXTRA, str(self.path))
        types = needed("rosbags.typesys", EXTRA, str(self.path))
        store = types.get_typestore(types.Stores.ROS2_HUMBLE)
        return rosbags.AnyReader([bag], default_typestore=store)

    def _messages(self, bag: Path, topics: tuple[str, ...] = (), **span: int) -> Iterator[Any]:
        """(topic, type, time, message) of a bag."""
        needed("rosbags", EXTRA, str(self.path))
        try:
            with self._open(bag) as reader:
                some = [c for c in reader.connections if not topics or c.topic in topics]
                for connection, time, raw in reader.messages(some, **span):
                    kind = connection.msgtype
                    yield connection.topic, kind, time, reader.deserialize(raw, kind)
        except InputError:
            raise
        except Exception as error:  # rosbags has an error for each of its parts
            raise self.fail(f"bag {bag.name}", "a readable recording", one_line(error)) from error

    def _read_bag(self, bag: Path) -> tuple[dict[str, Times], dict[str, Any], dict[str, Any]]:
        """When each camera's pictures came, each sensor's times and numbers, and their names."""
        pictures: dict[str, list[int]] = {}
        found: dict[str, list[tuple[int, list[float]]]] = {}
        names: dict[str, tuple[str, ...]] = {}
        for topic, kind, time, message in self._messages(bag):
            if kind in (IMAGE, COMPRESSED):
                pictures.setdefault(topic, []).append(time)
                continue
            numbers = list(_numbers(message, topic))
            if numbers:
                names.setdefault(topic, tuple(name for name, _ in numbers))
                found.setdefault(topic, []).append((time, [value for _, value in numbers]))
        told = {}
        for topic, rows in found.items():
            if len({len(values) for _, values in rows}) == 1:  # lists that grow are no columns
                times, values = zip(*rows, strict=True)
                told[topic] = np.array(times, np.int64), np.array(values, np.float64)
        return {t: np.array(times, np.int64) for t, times in pictures.items()}, told, names

    def _rows(
        self, bag: Path, seen: Any, told: Any, cameras: list[str], sensors: list[str]
    ) -> Times:
        slowest: Times = min((seen[camera] for camera in cameras), key=len)
        begun = max([int(seen[c][0]) for c in cameras] + [int(told[s][0][0]) for s in sensors])
        rows: Times = slowest[slowest >= begun]
        if len(rows) < 2:
            raise self.fail(
                f"bag {bag.name}", "two pictures after every topic has spoken", str(len(rows))
            )
        return rows

    def _pictures(self, bag: int, camera: str, times: Times) -> NDArray[np.uint8]:
        seen = self._seen[bag][camera]
        wanted = seen[np.searchsorted(seen, times, side="right") - 1]
        span = {"start": int(wanted[0]), "stop": int(wanted[-1]) + 1}
        found = {
            time: picture_of(message, f"{self.path}: topic {camera!r}")
            for _, _, time, message in self._messages(self._bags[bag], (camera,), **span)
        }
        return np.stack([found[int(time)] for time in wanted])


def picture_of(message: Any, where: str) -> NDArray[np.uint8]:
    """The picture in an Image or a CompressedImage, (H, W, 3); `where` is for errors."""
    if hasattr(message, "format"):
        image = needed("PIL.Image", EXTRA, where)
        try:
            return np.asarray(image.open(io.BytesIO(message.data.tobytes())).convert("RGB"))
        except OSError as error:
            raise InputError(f"{where}: expected a picture, found {one_line(error)}") from error
    if message.encoding not in LAYOUTS:
        raise InputError(
            f"{where}: encoding: expected one of {', '.join(LAYOUTS)}, found {message.encoding!r}"
        )
    size, order = LAYOUTS[message.encoding]
    height, width, step = int(message.height), int(message.width), int(message.step)
    if height * step != len(message.data) or width * size > step:
        raise InputError(
            f"{where}: expected {height} rows of {step} bytes for {width} pixels of {size}, found "
            f"{len(message.data)} bytes"
        )
    rows = np.asarray(message.data, np.uint8).reshape(height, step)
    return rows[:, : width * size].reshape(height, width, size)[..., list(order)]


def _bags(path: Path) -> list[Path]:
    """A bag by itself, or those in a folder, by name."""
    if path.suffix == ".mcap" and path.is_file():
        return [path]
    if (path / "metadata.yaml").is_file():
        return [path]
    inside = {p.parent for p in path.glob("*/metadata.yaml")} | set(path.glob("*.mcap"))
    return sorted(inside) if path.is_dir() else []


def _held(told: tuple[Times, NDArray[np.float64]], at: Times) -> NDArray[np.float64]:
    """The last values until then; the first, before there were any."""
    times, values = told
    return values[np.maximum(np.searchsorted(times, at, side="right") - 1, 0)]


def _numbers(message: Any, name: str) -> Iterator[tuple[str, float]]:
    """The numbers in a message, with their names."""
    if is_dataclass(message):
        for field in fields(message):
            if field.name not in LEFT_OUT and not field.name.startswith("__"):
                yield from _numbers(getattr(message, field.name), f"{name}.{field.name}")
    elif isinstance(message, bool | int | float | np.number):
        yield name, float(message)
    elif isinstance(message, np.ndarray | list):
        for index, value in enumerate(message):
            if isinstance(value, int | float | np.number):
                yield f"{name}.{index}", float(value)
