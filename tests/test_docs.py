"""The documentation as it is built."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bilinear_wm.cli import COMMANDS

ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """It builds without a warning, loads nothing from elsewhere, and shows every command's help."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    for page in pages:
        assert not LOADED.findall(page.read_text()), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?https?:", style.read_text()), style
    for name in COMMANDS:
        text = (tmp_path / "commands" / name / "index.html").read_text()
        assert f"usage: bwm {name}" in text
        assert "--help" in text
    assert (tmp_path / "images" / "points-pusht.png").is_file()
