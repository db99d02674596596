"""As much of torchvision as the neighbours import: it has no build for this torch.

Videos are decoded by PyAV, as torchvision's own `pyav` backend does.
"""

from torchvision import io, transforms, tv_tensors

__all__ = ["io", "set_video_backend", "transforms", "tv_tensors"]


def set_video_backend(backend: str) -> None:
    assert backend == "pyav"
