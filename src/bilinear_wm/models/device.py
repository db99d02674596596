"""Where a model runs."""

from __future__ import annotations

import torch

from bilinear_wm.errors import InputError


def find_device(name: str) -> torch.device:
    """The device of that name, once it is known to compute."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device: expected one that torch finds here ({', '.join(_here())}), found {name!r}"
        ) from error
    return device


def _here() -> list[str]:
    if not torch.accelerator.is_available():
        return ["cpu"]
    kind = torch.accelerator.current_accelerator()
    return ["cpu", *(f"{kind}:{i}" for i in range(torch.accelerator.device_count()))]
