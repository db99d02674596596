"""The kernel compiled ahead of time: on a robot neither numba nor a compiler is needed.

numba's own code for `run` of `planning/_compiled.py` becomes an object file, and the C compiler
links it with a function that takes all arguments from one table of 64-bit words. The table has the
numbers of arguments in numba's order: an array is (nothing, nothing, size, item size, address,
shape, strides), a tuple its fields one after the other.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinear_wm.errors import InputError

CPUS = {"x86_64": "x86-64-v3", "aarch64": "generic"}
"""What code is made for, by machine: nothing that a processor of the last ten years lacks."""
FLAGS = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
"""Of /proc/cpuinfo: what x86-64-v3 needs beyond its predecessors."""
ENTRY = "bilinear_wm_run"


def can_build() -> bool:
    """Whether code can be made here: on Linux, with a C compiler, for a machine that is known."""
    known = sys.platform == "linux" and platform.machine() in CPUS
    return known and shutil.which("cc") is not None


def fits(native: str) -> bool:
    """Whether this machine runs code that was made for `native`."""
    if sys.platform != "linux" or native != CPUS.get(platform.machine()):
        return False
    if platform.machine() != "x86_64":
        return True
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= FLAGS


def build(out: Path, arguments: tuple[Any, ...]) -> str:
    """Write a shared library of the kernel; returns what processor it is for.

    Args:
        out: The file.
        arguments: Of a call; code is made for their types, whatever their shapes.
    """
    name, code = _object_code(arguments)
    kinds = [kind for kind, _ in _words(arguments)]
    listed = ", ".join("double" if kind is float else "int64_t" for kind in kinds)
    values = ", ".join(f"table[{i}].{'d' if k is float else 'i'}" for i, k in enumerate(kinds))
    source = f"""#include <stdint.h>
typedef union {{ int64_t i; double d; }} word;
int32_t kernel(void *, void **, {listed}) __asm__("{name}");
int32_t {ENTRY}(const word *table) {{
    void *result = 0, *error = 0;
    return kernel(&result, &error, {values});
}}
void NRT_MemInfo_call_dtor(void *owner) {{ (void)owner; }} /* arrays here have none */
int64_t {ENTRY}_words = {len(kinds)};
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.o").write_bytes(code)
        (Path(folder) / "entry.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wl,-z,lazy", "entry.c", "kernel.o"]
        done = subprocess.run(
            [*command, "-o", str(out.resolve())], cwd=folder, capture_output=True, text=True
        )
    if done.returncode:
        raise InputError(
            "portable: expected a C compiler that links the kernel, found "
            f"{' '.join(done.stderr.split())[:200]!r}; export with `portable`, for numba"
        )
    return CPUS[platform.machine()]


def _object_code(arguments: tuple[Any, ...]) -> tuple[str, bytes]:
    """numba's code of `run` for arguments of these types: the function's name, an object file."""
    import numba
    from llvmlite import binding

    from bilinear_wm.planning._compiled import run
    from bilinear_wm.planning._compiled_products import INNER

    # Compiled anew: what numba keeps of an earlier compilation is for this very processor.
    fresh = numba.njit(**INNER | {"cache": False})(run.py_func)
    fresh.compile(tuple(numba.typeof(argument) for argument in arguments))
    (made,) = fresh.overloads.values()
    module = binding.parse_assembly(made.library.get_llvm_str())
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu=CPUS[platform.machine()], opt=3, reloc="pic")
    return made.fndesc.llvm_func_name, machine.emit_object(module)


class NativeRun:
    """`run`, from a shared library; threads may share it, each with a workspace of its own."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path.resolve()))
            self._entry: Any = getattr(library, ENTRY)
            self._count = ctypes.c_int64.in_dll(library, f"{ENTRY}_words").value
        except (OSError, AttributeError, ValueError) as error:
            raise InputError(f"{path}: expected the compiled kernel, found {error}") from error
        self._entry.argtypes, self._entry.restype = [ctypes.c_void_p], ctypes.c_int32
        self._local = threading.local()

    def __call__(self, *arguments: Any) -> None:
        """Arguments as `run` of `_compiled.py` has them."""
        tables: dict[int, _Table] = self._local.__dict__.setdefault("tables", {})
        space = arguments[2]
        if id(space) not in tables:
            tables[id(space)] = _Table(arguments, self._count)
        if self._entry(tables[id(space)].address(arguments)):
            raise RuntimeError("the compiled kernel failed")


class _Table:
    """The words of a call, for calls with the same workspace; it stays with its thread."""

    def __init__(self, arguments: tuple[Any, ...], expected: int) -> None:
        parts = [_packed(argument) for argument in arguments]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        if ends[-1] != expected:
            raise InputError(
                f"kernel.so: expected a kernel of {ends[-1]} words, found one of {expected}; "
                "export the bundle again"
            )
        self._words = np.concatenate(parts)
        self._places = [slice(*both) for both in zip([0, *ends[:-1]], ends, strict=True)]
        self._last = list(arguments)  # keeps what the addresses point to

    def address(self, arguments: tuple[Any, ...]) -> int:
        """Of the table, once it has what is new."""
        for i in CHANGING:
            if arguments[i] is not self._last[i]:
                self._words[self._places[i]] = _packed(arguments[i])
                self._last[i] = arguments[i]
        return self._words.ctypes.data


CHANGING = (0, 4, 6, 7)
"""Arguments that may be others in the next call: what, the problem, which plans, how often."""


def _packed(value: Any) -> NDArray[np.int64]:
    words = list(_words(value))
    packed = np.zeros(len(words), np.int64)
    floats = packed.view(np.float64)
    for i, (kind, word) in enumerate(words):
        (floats if kind is float else packed)[i] = word
    return packed


def _words(value: Any) -> Iterator[tuple[type, Any]]:
    """An argument as numbers, in numba's order."""
    if isinstance(value, tuple):
        for part in value:
            yield from _words(part)
    elif isinstance(value, np.ndarray):
        numbers = (0, 0, value.size, value.itemsize, value.ctypes.data)
        for number in (*numbers, *value.shape, *value.strides):
            yield int, number
    else:
        yield type(value), value
