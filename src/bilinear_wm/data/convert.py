"""Episodes of any format as a LeRobot v3 folder: `bwm convert tworoom.h5 --out tworoom`.

Pictures are stored as PNG inside the parquet files, exactly as they are. LeRobot's rows are
observations with the action taken at them, so an episode's last observation, after which nothing
is done, is left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from tqdm import tqdm

from bilinear_wm import disk
from bilinear_wm.data.file import EpisodeFile
from bilinear_wm.errors import InputError, needed
from bilinear_wm.observation import CAMERA
from bilinear_wm.stage import Outcome, at_least

EXTRA = "lerobot"
CHUNK = "chunk-000/file-{:03d}.parquet"
FILE_BYTES = 100 * 2**20
"""Of pictures in one parquet file, LeRobot's own limit."""
STATE = "observation.state"


@dataclass(frozen=True)
class ConvertConfig:
    """Recorded episodes in LeRobot's format.

    Attributes:
        source: Episodes of any format, a picture for every step; options after a `?`.
        out: The folder to write.
        fps: Environment steps a second, for the time stamps.
        task: What the robot does, in words; the file's task by default.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    out: Path
    fps: int = 10
    task: str | None = None

    def __post_init__(self) -> None:
        at_least(self, 1, "fps")

    def run(self) -> Outcome:
        """`convert`, in words."""
        result = convert(self)
        return Outcome(
            f"{result.out}: {result.episodes} episodes, {result.rows:,} rows; in LeRobot: "
            f"LeRobotDataset('local/{result.out.name}', root={str(result.out)!r})",
            asdict(result),
        )


@dataclass(frozen=True)
class ConvertResult:
    """What was written."""

    out: Path
    episodes: int
    rows: int


def convert(config: ConvertConfig, progress: bool = True) -> ConvertResult:
    """Write `config.out`, whole or not at all."""
    pa, parquet = (needed(name, EXTRA, "convert") for name in ("pyarrow", "pyarrow.parquet"))
    if config.out.exists():
        raise InputError(f"out {config.out}: exists already; remove it or name another folder")
    file = EpisodeFile(config.source)
    if file.frame_stride > 1:
        raise InputError(
            f"{file.path}: expected a picture for every step, found every {file.frame_stride}th; "
            "collect with --frame-stride 1"
        )
    episodes, rows = [], 0
    with disk.replacing(config.out) as folder:
        writer, number, written = None, 0, 0
        try:
            bar = tqdm(range(file.num_episodes), unit="episode", disable=not progress)
            for episode in bar:
                table, bytes_ = _rows(pa, file, config, episode, rows)
                if writer is None or written + bytes_ > FILE_BYTES:
                    if writer is not None:
                        writer.close()
                        number += 1
                    place = folder / "data" / CHUNK.format(number)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    writer, written = parquet.ParquetWriter(place, table.schema), 0
                writer.write_table(table)
                written += bytes_
                episodes.append(_episode_facts(episode, rows, len(table), number, config, file))
                rows += len(table)
        finally:
            if writer is not None:
                writer.close()
        _write_meta(pa, parquet, folder, file, config, episodes)
    return ConvertResult(config.out, file.num_episodes, rows)


def _rows(
    pa: Any, file: EpisodeFile, config: ConvertConfig, episode: int, first: int
) -> tuple[Any, int]:
    """One episode as an arrow table, and the bytes of its pictures."""
    start, count = int(file.offsets[episode]), int(file.lengths[episode]) - 1
    index = np.arange(count)
    columns: dict[str, Any] = {"action": _lists(pa, file.actions[start : start + count])}
    if file.states is not None:
        states = file.states[start : start + count].astype(np.float32)
        columns[STATE] = _lists(pa, states)
    size = 0
    for camera in _cameras(file):
        blobs = [_png(picture) for picture in file.read_frames(episode, camera, 0, count)]
        size += sum(map(len, blobs))
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        values = [{"bytes": blob, "path": None} for blob in blobs]
        columns[_camera_key(camera)] = pa.array(values, kind)
    columns["timestamp"] = pa.array((index / config.fps).astype(np.float32))
    columns["frame_index"] = pa.array(index)
    columns["episode_index"] = pa.array(np.full(count, episode))
    columns["index"] = pa.array(first + index)
    columns["task_index"] = pa.array(np.zeros(count, np.int64))
    return pa.table(columns), size


def _lists(pa: Any, values: NDArray[np.float32]) -> Any:
    if values.shape[1] == 1:
        return pa.array(values[:, 0])
    flat = pa.array(np.ascontiguousarray(values).ravel())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _png(picture: NDArray[np.uint8]) -> bytes:
    image = needed("PIL.Image", EXTRA, "convert")
    buffer = io.BytesIO()
    image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def _cameras(file: EpisodeFile) -> Iterator[str]:
    """The first camera, and the others that show pictures like it."""
    yield CAMERA
    for camera in file.cameras:
        if camera not in (CAMERA, file.camera_column(CAMERA)):
            file.check_camera(camera)
            yield camera


def _camera_key(camera: str) -> str:
    return camera if camera.startswith("observation.") else f"observation.images.{camera}"


def _episode_facts(
    episode: int, first: int, length: int, number: int, config: ConvertConfig, file: EpisodeFile
) -> dict[str, Any]:
    return {
        "episode_index": episode,
        "tasks": [_task(config, file)],
        "length": length,
        "data/chunk_index": 0,
        "data/file_index": number,
        "dataset_from_index": first,
        "dataset_to_index": first + length,
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
    }


def _task(config: ConvertConfig, file: EpisodeFile) -> str:
    return config.task or file.task or "unknown"


def _write_meta(
    pa: Any,
    parquet: Any,
    folder: Path,
    file: EpisodeFile,
    config: ConvertConfig,
    episodes: list[dict[str, Any]],
) -> None:
    place = folder / "meta" / "episodes" / CHUNK.format(0)
    place.parent.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(episodes), place)
    # pandas keeps the index of a frame in the schema: LeRobot looks tasks up by it.
    kinds = (("task", "unicode", "object"), ("task_index", "int64", "int64"))
    told = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": n, "field_name": n, "pandas_type": p, "numpy_type": k, "metadata": None}
            for n, p, k in kinds
        ],
    }
    tasks = pa.table({"task": [_task(config, file)], "task_index": [0]})
    tasks = tasks.replace_schema_metadata({"pandas": json.dumps(told)})
    parquet.write_table(tasks, folder / "meta" / "tasks.parquet")
    acted = np.ones(len(file.actions), bool)
    acted[file.offsets + file.lengths - 1] = False
    numbers = {"action": file.actions[acted]}
    if file.states is not None:
        numbers[STATE] = file.states[acted].astype(np.float32)
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [values.shape[1]], "names": None}
        for name, values in numbers.items()
    }
    for camera in _cameras(file):
        shape = [*file.picture_shape, 3]
        names = ["height", "width", "channels"]
        features[_camera_key(camera)] = {"dtype": "image", "shape": shape, "names": names}
    for name in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        dtype = "float32" if name == "timestamp" else "int64"
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(episodes),
        "total_frames": sum(one["length"] for one in episodes),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": FILE_BYTES // 2**20,
        "video_files_size_in_mb": 200,
        "fps": config.fps,
        "splits": {"train": f"0:{len(episodes)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": features,
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info, indent=4) + "\n")
    stats = {name: _statistics(values) for name, values in numbers.items()}
    (folder / "meta" / "stats.json").write_text(json.dumps(stats, indent=4) + "\n")


def _statistics(values: NDArray[np.float32]) -> dict[str, list[float]]:
    wide = values.astype(np.float64)
    found = {
        "min": wide.min(axis=0), "max": wide.max(axis=0),
        "mean": wide.mean(axis=0), "std": wide.std(axis=0), "count": np.array([len(wide)]),
    }  # fmt: skip
    return {name: numbers.tolist() for name, numbers in found.items()}
