from collections.abc import Iterator
from typing import Any, Self

import av
import torch


class VideoReader:
    """Frames of a video from some time on."""

    def __init__(self, path: str, stream: str) -> None:
        self.container = av.open(path)
        self._stream = self.container.streams.video[0]

    def seek(self, time_s: float, keyframes_only: bool = False) -> Self:
        assert self._stream.time_base is not None
        at = int(time_s / self._stream.time_base)
        self.container.seek(at, backward=True, stream=self._stream)
        return self

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for frame in self.container.decode(self._stream):
            picture = torch.from_numpy(frame.to_ndarray(format="rgb24"))
            yield {"data": picture.permute(2, 0, 1), "pts": frame.time}
