"""How episodes are stored: one file a format, found by looking at what is there.

    --data pusht.h5                                      ours, and the public stable-worldmodel/LeWM schema
    --data tworoom.lance                                 stable-worldmodel's table
    --data aloha?camera=observation.images.top&size=64   a LeRobot v3 folder
    --data drives?camera=/image_raw&action=/cmd_vel      ROS 2 recordings

What follows the question mark says how to read it (`source.py`). A format reads columns and judges
nothing: `data/file.py` checks them, in the same words for every format. Your own joins like a task
does: a subclass of `Format`, and `FORMATS.register` or an entry point.
"""  # noqa: E501

from __future__ import annotations

from pathlib import Path

from bilinear_wm.data import guard
from bilinear_wm.data.formats.base import Format
from bilinear_wm.errors import InputError
from bilinear_wm.registry import FORMATS

__all__ = ["FORMATS", "Format", "format_of"]


def format_of(path: Path) -> type[Format]:
    """The format in which the episodes at `path` are stored."""
    if not path.is_dir():
        guard.check_plain(path)
    found = next((f for f in map(FORMATS.__getitem__, FORMATS) if f.recognises(path)), None)
    if found is not None:
        return found
    if path.is_file():
        return FORMATS["hdf5"]  # which says what is wrong with it
    raise InputError(
        f"{path}: expected episodes ({', '.join(FORMATS)}), found a folder without meta/info.json "
        "(LeRobot), a single *.lance table or bags with metadata.yaml (ROS 2); name the file "
        "or the dataset's folder"
    )
