"""The Python in README and docs runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    (page.name, code)
    for page in PAGES
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
]


LINKS = [
    (page.relative_to(ROOT), link)
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
    if not link.startswith(("http", "../../actions/"))  # the badge is the hosting site's
]


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_link(page: Path, link: str) -> None:
    """Links of the pages that the documentation site does not check."""
    assert (ROOT / page.parent / link).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), EXAMPLES)
def test_example(page: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "pretrained").symlink_to(ROOT / "pretrained")
    script = tmp_path / "example.py"
    script.write_text(code)
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
