"""A report is there as a whole or not at all."""

import json
from pathlib import Path

import pytest

from trunkline.loadtest.load import report
from trunkline.shared.errors import ConfigError


def test_a_report_has_all_its_files_and_a_name_of_its_own(tmp_path: Path) -> None:
    first, second = (report.write(tmp_path, 0.0, {"a.json": {"x": 1}, "b.html": "<p>"}) for _ in range(2))
    assert first != second
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert json.loads((first / "a.json").read_text()) == {"x": 1}
    assert (second / "b.html").read_text() == "<p>"


def test_a_report_that_fails_in_the_midst_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        report.write(tmp_path, 0.0, {"a.json": {}, "b.json": object()})
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="--reports"):
        report.check(file / "below")
