"""The README shows what is in the examples."""

from __future__ import annotations

import difflib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_readme_has_the_example_as_it_is() -> None:
    readme = (ROOT / "README.md").read_text()
    assert (ROOT / "examples" / "rollout.py").read_text().rstrip() in readme


def test_admission_and_close_take_under_ten_lines() -> None:
    before = (ROOT / "examples" / "rollout_before.py").read_text().splitlines()
    after = (ROOT / "examples" / "rollout.py").read_text().splitlines()
    changed = [x[2:] for x in difflib.ndiff(before, after) if x.startswith("+ ") and x[2:].strip()]
    assert 0 < len(changed) < 10, changed
    readme = (ROOT / "README.md").read_text()
    for line in changed:
        assert f"\n+{line}\n" in readme
