"""Documents that list what exists list all of it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"


def test_the_index_of_decisions_names_every_record_once_with_its_number_and_title():
    index = (DECISIONS / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d{4}) \| \[(.+)\]\((.+)\) \| (.+) \|$", index, re.MULTILINE)
    records = sorted(DECISIONS.glob("[0-9]*.md"))
    assert records
    expected = []
    for record in records:
        first = record.read_text("utf-8").splitlines()[0]
        title = re.sub(r"^# \d{4}:? ", "", first)
        expected.append((record.name[:4], title, record.name))
    assert [row[:3] for row in rows] == expected
    assert len({row[3] for row in rows}) == len(rows)


def test_each_room_of_the_table_has_its_package_and_a_short_readme():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rooms = re.findall(r"^\| `(.+)/` \| `(hedgerow_\w+)` \|", text, re.MULTILINE)
    assert {package for _, package in rooms} == {
        path.name
        for pattern in ("shared/hedgerow_*", "services/*/hedgerow_*", "infra/*/hedgerow_*")
        for path in ROOT.glob(pattern)
        if (path / "__init__.py").exists()
    }
    for folder, package in rooms:
        assert (ROOT / folder / package / "__init__.py").exists()
        readme = (ROOT / folder / "README.md").read_text("utf-8")
        assert 5 <= len(readme.splitlines()) <= 25
        for word in ("in", "out", "refuse"):
            assert re.search(rf"\*\*{word}", readme, re.IGNORECASE), (folder, word)


def test_numbers_of_decisions_named_in_readmes_exist():
    known = {record.name[:4] for record in DECISIONS.glob("[0-9]*.md")}
    engine = (ROOT / "services/engine/README.md").read_text("utf-8")
    named = set(re.findall(r"\b0\d{3}\b", engine))
    assert named
    assert named <= known
