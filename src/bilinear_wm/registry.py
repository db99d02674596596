"""Names and what they stand for: tasks, formats, models, encoders, planners, built in or your own.

What is built in is listed at the end and imported when it is first used: names are known without
torch or a simulator. Your own joins by a call in a module that `bwm --plugin` names,

    from bilinear_wm.registry import TASKS
    TASKS.register("cart", Cart)

or without one, by an entry point of an installed package:

    [project.entry-points."bilinear_wm.tasks"]
    cart = "my_package.cart:Cart"

Checkpoints and episode files hold such names, never addresses: what is imported is decided by the
command line and by what is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bilinear_wm.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from bilinear_wm.data.formats.base import Format
    from bilinear_wm.models.base import WorldModel
    from bilinear_wm.models.config import ModelConfig
    from bilinear_wm.planning.base import Planner
    from bilinear_wm.tasks.base import Task

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""Names become parts of file names."""


class Registry(Generic[T]):
    """Things of one kind by name; looking one up imports it.

    Args:
        kind: What they are, in the singular; entry points have the group `bilinear_wm.<kind>s`.
        built_in: Addresses (`module:attribute`, below `bilinear_wm`) by name.
        needs: Attributes that a thing must have.
        named_by: The attribute that must repeat the name, if any.
        reserved: Names that mean something else where this kind is asked for.
        extra: What `pip install 'bilinear-world-models[...]'` brings for those built in.
    """

    def __init__(
        self,
        kind: str,
        built_in: Mapping[str, str],
        *,
        needs: Sequence[str] = (),
        named_by: str | None = None,
        reserved: Sequence[str] = (),
        extra: str | None = None,
    ) -> None:
        self.kind, self.group, self.built_in = kind, f"bilinear_wm.{kind}s", tuple(built_in)
        self._needs, self._named_by, self._extra = tuple(needs), named_by, extra
        self._reserved = tuple(reserved)
        self._addresses = {name: f"bilinear_wm.{place}" for name, place in built_in.items()}
        self._things: dict[str, T] = {}
        self._searched = False

    def register(self, name: str, thing: T) -> T:
        """Make a thing known; a definition that is run again (a notebook's cell) replaces itself.

        Raises:
            InputError: If the name is taken by something else, or the thing cannot serve.
        """
        self._find_installed()
        self._check_thing(name, thing)
        self._add(name, _address(thing))
        self._things[name] = thing
        return thing

    def __iter__(self) -> Iterator[str]:
        """All names, those built in first; nothing is imported."""
        self._find_installed()
        return iter(tuple(self._addresses))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in tuple(self)

    def __getitem__(self, name: str) -> T:
        """The thing, imported if it was not yet."""
        self.check(name)
        if name not in self._things:
            thing = self._load(name)
            self._check_thing(name, thing)
            self._things[name] = thing
        return self._things[name]

    def check(self, name: Any, where: str | None = None, also: Sequence[str] = ()) -> None:
        """Refuse an unknown name with a sentence that lists the known ones.

        Args:
            name: The name.
            where: The argument or file that gave it.
            also: Further names that mean something there.
        """
        if name not in also and name not in self:
            raise InputError(
                f"{where or self.kind}: expected one of {', '.join((*self, *also))}, found "
                f"{name!r}; your own {self.kind} comes with --plugin or an installed package"
            )

    def address(self, name: str) -> str:
        """Where a thing is defined: `module:attribute`."""
        self.check(name)
        return self._addresses[name]

    def _find_installed(self) -> None:
        """Entry points, once they are needed: what is built in is found without them."""
        if self._searched:
            return
        from importlib.metadata import entry_points

        for entry in entry_points(group=self.group):
            self._add(entry.name, f"{entry.module}:{entry.attr}")
        self._searched = True

    def _add(self, name: str, address: str) -> None:
        if not NAME.fullmatch(name) or name in self._reserved:
            raise InputError(
                f"{self.kind} {name!r} ({address}): expected a name of letters, digits, '_', '-' "
                f"and '.', none of {', '.join(self._reserved) or 'them reserved'}; give another"
            )
        taken = self._addresses.setdefault(name, address)
        if taken != address:
            raise InputError(
                f"{self.kind} {name!r}: expected a new name for {address}, found one that {taken} "
                "has already; rename or uninstall one of them"
            )

    def _load(self, name: str) -> T:
        module, _, attribute = self._addresses[name].partition(":")
        try:
            thing: T = operator.attrgetter(attribute)(importlib.import_module(module))
        except ModuleNotFoundError as error:
            brought = f": pip install 'bilinear-world-models[{self._extra}]'"
            raise InputError(
                f"{self.kind} {name!r} needs the package {error.name!r}"
                + (brought if name in self.built_in and self._extra else "")
            ) from error
        except AttributeError as error:
            raise InputError(
                f"{self.kind} {name!r}: expected {self._addresses[name]}, as its package says, "
                f"found none ({error})"
            ) from error
        return thing

    def _check_thing(self, name: str, thing: T) -> None:
        missing = [need for need in self._needs if not hasattr(thing, need)]
        if missing or not callable(thing):
            raise InputError(
                f"{self.kind} {name!r}: expected a class with {', '.join(self._needs)}, found "
                f"{_address(thing)} without {', '.join(missing)}"
            )
        if self._named_by and getattr(thing, self._named_by) != name:
            raise InputError(
                f"{self.kind} {name!r}: expected {_address(thing)}.{self._named_by} to be the "
                f"same name, found {getattr(thing, self._named_by)!r}"
            )


def _address(thing: Any) -> str:
    place = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{place.__module__}:{place.__qualname__}"


_plugins: list[str] = []


def load_plugin(source: str | Path) -> None:
    """Import a module, or run a file that ends in `.py`, once: it registers what it brings."""
    name = source = str(source)
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise InputError(f"--plugin {source}: expected a file, found none")
        # The path is part of the name: two folders may each have a file `plugin.py`.
        name = f"bilinear_wm_plugin_{zlib.crc32(str(path).encode()):08x}_{path.stem}"
        source = str(path)
    if source in _plugins:
        return
    try:
        importlib.import_module(name) if name == source else _run_file(name, source)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"--plugin {name}: expected an importable module or a file that ends in .py, "
                "found none"
            ) from error
        raise InputError(f"--plugin {source}: needs the package {error.name!r}") from error
    _plugins.append(source)


def _run_file(name: str, path: str) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def loaded_plugins() -> tuple[str, ...]:
    """What `load_plugin` has loaded here, for a process that is started to load it too."""
    return tuple(_plugins)


TASKS: Registry[type[Task]] = Registry(
    "task",
    {
        "tworoom": "tasks.tworoom:TwoRoom",
        "pusht": "tasks.pusht:PushT",
        "reacher": "tasks.reacher:Reacher",
        "cube": "tasks.cube:Cube",
    },
    needs=("name", "state_names", "action_names", "picture", "behaviour"),
    named_by="name",
    extra="envs",
)
FORMATS: Registry[type[Format]] = Registry(
    "format",
    {
        "hdf5": "data.formats.hdf5:Hdf5",
        "lance": "data.formats.lance:Lance",
        "lerobot": "data.formats.lerobot:LeRobot",
        "rosbag": "data.formats.rosbag:Rosbag",
    },
    needs=("name", "recognises", "index", "read"),
    named_by="name",
)
MODELS: Registry[type[WorldModel]] = Registry(
    "model",
    {
        "bilinear": "models.bilinear:BilinearWorldModel",
        "lewm": "models.lewm:LeWorldModel",
        "smwm": "models.smwm:SensorimotorWorldModel",
    },
    needs=("kind", "config_class", "latent_loss"),
    named_by="kind",
)
ENCODERS: Registry[Callable[[ModelConfig], nn.Module]] = Registry(
    "encoder",
    {
        "points": "models.encoders.points:PointsEncoder",
        "vit": "models.encoders.vit:VisionTransformer",
        "frozen": "models.encoders.frozen:FrozenEncoder",
    },
)
PLANNERS: Registry[type[Planner]] = Registry(
    "planner",
    {
        "gauss-newton": "planning.gauss_newton:GaussNewtonPlanner",
        "prior": "planning.prior:PriorPlanner",
        "cem": "planning.cem:CEMPlanner",
        "icem": "planning.icem:ICEMPlanner",
        "mppi": "planning.mppi:MPPIPlanner",
        "adam": "planning.adam:AdamPlanner",
    },
    needs=("config_class", "plan"),
    reserved=("random", "none"),
)
