"""Folders appear whole or not at all, and nothing but an older model of ours is ever replaced."""

from __future__ import annotations

import pytest

from exitpoll import InputError
from exitpoll.files import publish, read_json, write_json
from exitpoll.models.folder import check_free_for_model


def test_a_new_or_empty_folder_is_free(tmp_path):
    check_free_for_model(tmp_path / "new", overwrite=False)
    check_free_for_model(tmp_path, overwrite=False)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def out(tmp_path):
    """A folder to write, with the folder of its work beside it."""
    (tmp_path / "out.partial" / "prepared").mkdir(parents=True)
    (tmp_path / "out.partial" / "prepared" / "new").touch()
    return tmp_path / "out"


def test_what_exists_is_kept_unless_told(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free_for_model(tmp_path, overwrite=False)
    check_free_for_model(tmp_path, overwrite=True)


@pytest.mark.parametrize("content", [None, {"model_type": "bert"}])
def test_what_is_not_ours_is_never_overwritten(tmp_path, content):
    (tmp_path / "thesis.txt").write_text("years of work")
    if content:
        write_json(tmp_path / "config.json", content)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="exists and is not an exitpoll model folder; choose another folder"):
            check_free_for_model(tmp_path, overwrite=overwrite)


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="not an exitpoll model folder"):
        check_free_for_model(tmp_path / "file", overwrite=True)


@pytest.mark.parametrize("older", [False, True])
def test_publish(out, older):
    if older:
        out.mkdir()
        (out / "old").touch()
    publish(out.parent / "out.partial", "prepared", out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["new"]


def test_broken_json_reads_as_none(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "b.json") is None
    assert read_json(tmp_path / "none.json") is None


def test_a_kill_between_the_renames_loses_nothing(out):
    (out.parent / "out.partial" / "replaced").mkdir()
    write_json(out.parent / "out.partial" / "replaced" / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free_for_model(out, overwrite=False)
    assert (out / "config.json").exists()
