"""Folders appear whole or not at all, and nothing but an older model of ours is ever replaced."""

from __future__ import annotations

import pytest

from exitpoll import InputError
from exitpoll.folders import check_free, publish, read_json, write_json


def test_a_new_or_empty_folder_is_free(tmp_path):
    check_free(tmp_path / "new", overwrite=False)
    check_free(tmp_path, overwrite=False)


def test_what_exists_is_kept_unless_told(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free(tmp_path, overwrite=False)
    check_free(tmp_path, overwrite=True)


@pytest.mark.parametrize("content", [None, {"model_type": "bert"}])
def test_what_is_not_ours_is_never_overwritten(tmp_path, content):
    (tmp_path / "thesis.txt").write_text("years of work")
    if content:
        write_json(tmp_path / "config.json", content)
    with pytest.raises(InputError, match="not a model folder of exitpoll"):
        check_free(tmp_path, overwrite=True)


def test_a_file_is_never_overwritten(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="not a model folder"):
        check_free(tmp_path / "file", overwrite=True)


@pytest.mark.parametrize("older", [False, True])
def test_publish(tmp_path, older):
    if older:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "old").touch()
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "new").touch()
    publish(tmp_path / "prepared", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]


def test_broken_json_reads_as_none(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") is None
    assert read_json(tmp_path / "b.json") is None
    assert read_json(tmp_path / "none.json") is None


def test_a_kill_between_the_renames_loses_nothing(tmp_path):
    (tmp_path / "out.older").mkdir()
    write_json(tmp_path / "out.older" / "config.json", {"model_type": "exitpoll"})
    with pytest.raises(InputError, match="exists already"):
        check_free(tmp_path / "out", overwrite=False)
    assert (tmp_path / "out" / "config.json").exists()


def test_a_left_over_older_folder_does_not_stop_publishing(tmp_path):
    for name in ("out", "out.older", "prepared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    publish(tmp_path / "prepared", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
