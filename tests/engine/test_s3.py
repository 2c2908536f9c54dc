"""Inputs in S3, of which a server imitates all that is needed; outputs are on a disk."""

from __future__ import annotations

import json

import pytest
import s3fs
from moto import server
from pyarrow import Table, parquet

from exitpoll import Policy
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.processes import Processes
from exitpoll.engine.sharded import ThisProcess, predict_shards
from tests.tiny import toy_rows

POLICY = Policy("max_prob", 0.36)
TEXTS = [text for text, _ in toy_rows(40)]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]


@pytest.fixture
def s3(monkeypatch):
    """An S3 with one bucket, which this process and those that it starts are sent to."""
    imitation = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    imitation.start()
    host, port = imitation.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    files.mkdir("questions")
    yield files
    s3fs.S3FileSystem.clear_instance_cache()
    imitation.stop()


@pytest.mark.slow
def test_inputs_are_read_from_s3(s3, exported_folder, tmp_path):
    parquet.write_table(Table.from_pylist(ROWS[:25]), "questions/a.parquet", filesystem=s3, row_group_size=10)
    with s3.open("questions/deeper/b.jsonl", "w") as file:
        file.write("".join(json.dumps(row) + "\n" for row in ROWS[25:]))
    choice = ModelChoice.of(exported_folder)
    here = ThisProcess(choice, POLICY, threads=1)
    expected = [prediction.label for prediction in here.engine(TEXTS)]
    for runner, name in ((here, "one"), (Processes(1), "other")):
        options = {"policy": POLICY, "shard_rows": 10}
        assert predict_shards(runner, choice, "s3://questions", tmp_path / name, **options).rows == len(ROWS)
        shards = sorted((tmp_path / name).glob("*.parquet"))
        assert len(shards) == 4  # three of the Parquet file, and one of the text file, which is not divided
        rows = [row for path in shards for row in parquet.read_table(path).to_pylist()]
        assert [(row["id"], row["predicted"]) for row in rows] == list(enumerate(expected))
    with s3.open("questions/deeper/b.jsonl", "a") as file:
        file.write(json.dumps({"id": 40, "text": "late"}) + "\n")
    predict_shards(here, choice, "s3://questions/deeper/*.jsonl", tmp_path / "glob.csv", policy=POLICY)
    assert len((tmp_path / "glob.csv").read_text().splitlines()) == 1 + 16
