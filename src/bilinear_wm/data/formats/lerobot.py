"""A LeRobot v3 folder: numbers in parquet, pictures as videos (mp4) or inside the parquet.

    meta/info.json            features, frames a second, where the files are
    meta/episodes/…           per episode: its rows, and where in which video it begins
    data/…                    a row a step
    videos/CAMERA/…           the pictures of many episodes end to end

Rows are steps, `action` is what was done at each. Pictures of a video come back within the error
of its codec.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.formats.base import Format, episodes_of, one_line
from bilinear_wm.errors import needed

EXTRA = "lerobot"
INFO = "meta/info.json"
VERSION = "v3."
NUMBERS = ("float16", "float32", "float64")


class LeRobot(Format):
    """One dataset folder."""

    name = "lerobot"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._parquet = needed("pyarrow.parquet", EXTRA, str(path))
        self._info = self._read_info()
        self._fps = float(self._info["fps"])
        self._episodes = self._read_parts("meta/episodes")
        order = np.argsort(self._episodes["episode_index"])
        self._episodes = {name: values[order] for name, values in self._episodes.items()}
        self._files = sorted((path / "data").glob("*/*.parquet"))
        features: dict[str, Any] = self._info["features"]
        self._stored = {n: f for n, f in features.items() if f["dtype"] in ("video", "image")}
        wanted = [n for n, f in features.items() if n not in self._stored and f["dtype"] in NUMBERS]
        self._numbers = self._read_parts("data", (*wanted, "episode_index"))
        rows = len(self._numbers["episode_index"])
        names = {}
        for column, values in self._numbers.items():
            self.columns[column] = values.shape, str(values.dtype)
            names[column] = _flat_names(features[column].get("names"), values)
        for column, feature in self._stored.items():
            self.columns[column] = (rows, *_picture_shape(feature), 3), "uint8"
        self.element_names = {column: found for column, found in names.items() if found}

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return (path / INFO).is_file()

    def index(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        found = episodes_of(self._numbers["episode_index"].astype(np.int64))
        told = np.asarray(self._episodes["length"], np.int64)
        if not np.array_equal(found[0], told):
            raise self.fail(
                "meta/episodes", f"the lengths of {len(told)} episodes in data/", "others",
                "download the dataset again",
            )  # fmt: skip
        return found

    def read(self, column: str, first: int, last: int) -> NDArray[Any]:
        if column not in self._stored:
            return self._numbers[column][first:last]
        if self._stored[column]["dtype"] == "image":
            return self._read_images(column, first, last)
        return self._read_video(column, first, last)

    # Inside.

    def _read_info(self) -> dict[str, Any]:
        try:
            info = json.loads((self.path / INFO).read_text())
            version, _ = str(info["codebase_version"]), (info["fps"], info["features"].items())
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise self.fail(
                INFO, "codebase_version, fps and features", one_line(error) or type(error).__name__
            ) from error
        if not version.startswith(VERSION):
            raise self.fail(
                f"{INFO}: codebase_version", "v3.0", version, "convert it with LeRobot's own script"
            )
        return dict(info)

    def _read_parts(self, folder: str, wanted: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
        """Columns of all parquet files of a folder, end to end."""
        files = sorted((self.path / folder).glob("*/*.parquet"))
        if not files:
            raise self.fail(folder, "parquet files", "none", "download the whole dataset")
        try:
            if not wanted:
                every = self._parquet.read_schema(files[0]).names
                wanted = tuple(name for name in every if not name.startswith(("stats/", "tasks")))
            tables = [self._parquet.read_table(file, columns=list(wanted)) for file in files]
        except (ValueError, OSError) as error:
            raise self.fail(folder, "readable parquet files", one_line(error)) from error
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in wanted}
        for table in tables:
            for name in wanted:
                if name not in table.column_names:
                    raise self.fail(
                        f"{folder}: column {name!r}", f"it to exist, as {INFO} says", "none"
                    )
                parts[name].append(_array(table.column(name)))
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _read_images(self, column: str, first: int, last: int) -> NDArray[np.uint8]:
        image = needed("PIL.Image", EXTRA, str(self.path))
        pictures, before = [], 0
        for file in self._files:
            stored = self._parquet.ParquetFile(file)
            rows = stored.metadata.num_rows
            low, high = max(first - before, 0), min(last - before, rows)
            if low < high:
                values = stored.read(columns=[column]).column(column)[low:high].to_pylist()
                for value in values:
                    try:
                        opened = image.open(io.BytesIO(value["bytes"])).convert("RGB")
                    except (OSError, TypeError, KeyError) as error:
                        raise self.fail(
                            f"column {column!r}", "pictures", one_line(error)
                        ) from error
                    pictures.append(np.asarray(opened))
            before += rows
        return np.stack(pictures)

    def _read_video(self, column: str, first: int, last: int) -> NDArray[np.uint8]:
        av = needed("av", EXTRA, str(self.path))
        lengths = np.asarray(self._episodes["length"], np.int64)
        begins = np.cumsum(lengths) - lengths
        episode = int(np.searchsorted(begins, first, side="right")) - 1
        facts = {
            name: self._episodes[f"videos/{column}/{name}"][episode]
            for name in ("chunk_index", "file_index", "from_timestamp")
        }
        place = self._info["video_path"].format(
            video_key=column,
            chunk_index=int(facts["chunk_index"]),
            file_index=int(facts["file_index"]),
        )
        # Frames by their number in the video: its times are multiples of the frame's.
        start = round(float(facts["from_timestamp"]) * self._fps) + first - int(begins[episode])
        wanted = range(start, start + last - first)
        found: dict[int, NDArray[np.uint8]] = {}
        try:
            with av.open(str(self.path / place)) as video:
                stream = video.streams.video[0]
                video.seek(int(wanted[0] / self._fps / stream.time_base), stream=stream)
                for frame in video.decode(stream):
                    number = round(frame.time * self._fps)
                    if number in wanted:
                        found[number] = frame.to_ndarray(format="rgb24")
                    if number >= wanted[-1]:
                        break
        except (OSError, ValueError, av.error.FFmpegError) as error:
            raise self.fail(place, "a readable video", one_line(error)) from error
        missing = [number for number in wanted if number not in found]
        if missing:
            raise self.fail(
                f"{place}, episode {episode}",
                f"{len(wanted)} pictures from {wanted[0] / self._fps:.2f} s on",
                f"none at {missing[0] / self._fps:.2f} s",
                "download the dataset again",
            )
        return np.stack([found[number] for number in wanted])


def _array(column: Any) -> NDArray[Any]:
    """An arrow column as one array; lists of numbers become rows."""
    values = column.combine_chunks()
    if "list" in str(values.type):
        rows = len(values)
        return values.flatten().to_numpy(zero_copy_only=False).reshape(rows, -1)
    return values.to_numpy(zero_copy_only=False)


def _picture_shape(feature: dict[str, Any]) -> tuple[int, int]:
    """Height and width; stored with the channels first or last."""
    first, second, third = (int(n) for n in feature["shape"])
    return (second, third) if first == 3 and third != 3 else (first, second)


def _flat_names(names: Any, values: NDArray[Any]) -> tuple[str, ...]:
    """Names of a feature's numbers: a list, or a dictionary of lists."""
    if isinstance(names, dict):
        names = [name for group in names.values() for name in group]
    count = values.shape[1] if values.ndim > 1 else 1
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == count else ()
