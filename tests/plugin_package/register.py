"""The same three for `bwm --plugin tests/plugin_package/register.py`, without an installation."""

from __future__ import annotations

import sys
from pathlib import Path

from bilinear_wm.registry import ENCODERS, PLANNERS, TASKS

sys.path.insert(0, str(Path(__file__).parent))

from rail_world.encoder import ColumnsEncoder
from rail_world.planner import LatticePlanner
from rail_world.task import Rail

TASKS.register("rail", Rail)
PLANNERS.register("lattice", LatticePlanner)
ENCODERS.register("columns", ColumnsEncoder)
