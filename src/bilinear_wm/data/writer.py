"""Appending episodes to a file; `formats/hdf5.py` describes its columns."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bilinear_wm.data.file import Episode, Provenance
from bilinear_wm.data.formats.hdf5 import FORMAT_VERSION, THINNED
from bilinear_wm.data.journal import JournaledFile

CHUNK_BYTES, PICTURE_CHUNK_BYTES = 2**14, 2**17
"""The last chunk of every column is written again with every episode: numbers have small ones."""
COMPRESSION = {"compression": "gzip", "compression_opts": 1}


class EpisodeWriter:
    """Appends episodes to an open file; the caller renames it into place when done.

    Whatever happens meanwhile, `journal.restore` brings all episodes back that were written.
    """

    def __init__(self, path: Path, provenance: Provenance, append: bool = False) -> None:
        self._disk = JournaledFile(path, "r+b" if append else "w+b")
        self._file = h5py.File(self._disk, "a" if append else "w", libver="latest")
        self.num_episodes = len(self._file["ep_len"]) if append else 0
        self._rows = len(self._file["state"]) if append else 0
        # Thinned pictures have a name of their own; files of version 1 had them in `pixels`.
        thinned = provenance.frame_stride > 1 and "pixels" not in self._file
        self._pixels = f"{THINNED}/pixels" if thinned else "pixels"
        self._frames = len(self._file[self._pixels]) if append else 0
        if not append:
            self._file.attrs["format_version"] = FORMAT_VERSION
            for name, value in asdict(provenance).items():
                self._file.attrs[name] = value

    def note(self, **attributes: Any) -> None:
        """Write further attributes (dictionaries as JSON)."""
        for name, value in attributes.items():
            self._file.attrs[name] = json.dumps(value) if isinstance(value, dict) else value

    def write(self, episode: Episode) -> None:
        """Append one episode.

        Raises:
            OSError: If the disk does not take it.
        """
        rows = len(episode.states)
        last = np.full((1, episode.actions.shape[1]), np.nan, np.float32)
        self._append(self._pixels, episode.pixels, **COMPRESSION)
        self._append("action", np.concatenate([episode.actions, last]))
        self._append("state", episode.states)
        self._append("episode_idx", np.full(rows, self.num_episodes, np.int64))
        self._append("step_idx", np.arange(rows, dtype=np.int64))
        self._append("ep_len", np.array([rows], np.int32))
        self._append("ep_offset", np.array([self._rows], np.int64))
        self._file.flush()
        self._disk.commit()
        self.num_episodes += 1
        self._rows += rows
        self._frames += len(episode.pixels)

    def _append(self, name: str, values: NDArray[Any], **options: Any) -> None:
        if name not in self._file:
            row_bytes = values[0].nbytes
            chunk_bytes = PICTURE_CHUNK_BYTES if name == self._pixels else CHUNK_BYTES
            self._file.create_dataset(
                name,
                data=values,
                maxshape=(None, *values.shape[1:]),
                chunks=(max(chunk_bytes // row_bytes, 1), *values.shape[1:]),
                fletcher32=True,  # a flipped byte is an error, not another number
                **options,
            )
            return
        column = self._file[name]
        count = len(column)
        column.resize(count + len(values), axis=0)
        column[count:] = values

    def close(self) -> None:
        """Drop what an interrupted `write` left of its episode, flush and close."""
        counts = {
            self._pixels: self._frames,
            "ep_len": self.num_episodes,
            "ep_offset": self.num_episodes,
        }
        for name in {*self._file, self._pixels} - {THINNED}:
            if name in self._file:
                self._file[name].resize(counts.get(name, self._rows), axis=0)
        self._file.close()
        try:
            self._disk.commit()
        finally:
            self._disk.close()

    def abandon(self) -> None:
        """Let go of a file that cannot be written any more; `journal.restore` mends it."""
        with contextlib.suppress(Exception):
            self._file.close()
        self._disk.close()
