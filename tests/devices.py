"""A second device, without a GPU: real numbers in tensors that say they are elsewhere.

    with elsewhere() as device:
        model.to(device)

While it lasts, tensors that are made on, or moved to, `device` compute as always, but refuse to
meet a CPU tensor (unless that is a single number, as on a GPU), refuse `.numpy()`, and refuse to
be indexed by a tensor of another device. The device is torch's `meta`, which has no numbers of its
own to confuse them with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("meta")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
"""What may bring tensors of two devices together."""


class Elsewhere(Tensor):
    """A CPU tensor that says it is on another device."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(),
            dtype=inside.dtype, device=DEVICE, requires_grad=inside.requires_grad,
        )  # fmt: skip
        made.inside = inside.detach()
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Elsewhere({self.inside})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; results are where the arguments are, or where they were asked for."""
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    here = [x for x in tensors if not isinstance(x, Elsewhere)]
    if there and func not in COPIES and any(x.ndim for x in here):
        shapes = [tuple(x.shape) for x in here]
        raise RuntimeError(f"{func}: expected tensors on one device, found {shapes} on the CPU")
    asked = kwargs.get("device")
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    moved = bool(there) if asked is None else torch.device(asked) == DEVICE
    if func is torch.ops.aten.copy_.default:
        moved = isinstance(args[0], Elsewhere)
    plain = pytree.tree_map_only(Elsewhere, lambda x: x.inside, (args, kwargs))
    found = func(*plain[0], **plain[1])
    if not moved:
        return found
    # What an operation changed in place is the argument itself, not a new tensor.
    known = {id(x.inside): x for x in there}
    return pytree.tree_map_only(
        Tensor, lambda x: known[id(x)] if id(x) in known else Elsewhere(x), found
    )


class _Factories(TorchDispatchMode):
    """Tensors that are made on, or moved to, the device: no argument of theirs is there yet."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Calls(TorchFunctionMode):
    """What torch does before it dispatches: read data, and copy an index to where it is needed."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].inside.tolist()
        if func is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return Elsewhere(args[0].inside.new_tensor(*args[1:], **kwargs))
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == DEVICE:
            if isinstance(args[0], Elsewhere):
                return args[0].to(kwargs.get("dtype"))
            return Elsewhere(func(*args, **kwargs | {"device": "cpu"}))
        if func in (Tensor.__matmul__, Tensor.matmul, torch.matmul) and args[0].ndim == 1:
            # Torch squeezes in place, which a tensor that wraps another does not notice.
            return (args[0].unsqueeze(0) @ args[1]).squeeze(0)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            for index in pytree.tree_leaves(args[1]):
                if isinstance(index, Tensor) and index.device != args[0].device:
                    raise RuntimeError(
                        f"expected an index on {args[0].device}, found one on {index.device}"
                    )
            if isinstance(args[0], Elsewhere):
                args = (args[0], _listed(args[1]), *args[2:])
        return func(*args, **kwargs)


def _listed(index: Any) -> Any:
    """Lists become tensors where they are needed, as on any device but `meta`."""
    if isinstance(index, tuple):
        return tuple(map(_listed, index))
    return Elsewhere(torch.tensor(index)) if isinstance(index, list) else index


@contextlib.contextmanager
def elsewhere() -> Iterator[torch.device]:
    """A device of its own."""
    autocast = torch.autocast

    def known(kind: str, *args: Any, **options: Any) -> Any:
        """Mixed precision, which the device has none of."""
        return contextlib.nullcontext() if kind == DEVICE.type else autocast(kind, *args, **options)

    def without_gradients(mode: bool = True) -> Any:
        """Tensors that wrap others cannot be inference tensors."""
        return torch.no_grad() if mode else contextlib.nullcontext()

    with (
        mock.patch("torch.autocast", known),
        mock.patch("torch.inference_mode", without_gradients),
        _Calls(),
        _Factories(),
    ):
        yield DEVICE
