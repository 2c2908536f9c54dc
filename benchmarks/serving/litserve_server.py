"""LitServe with the full ONNX graph, in batches of up to 32 that wait 2 ms: litserve_server.py WORK --port 8000."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import litserve  # type: ignore[import-not-found]
from full_graph import FullGraph


class Classifier(litserve.LitAPI):
    """Answers at full depth."""

    work: Path

    def setup(self, device: str) -> None:
        """Load the model, in a worker."""
        self.graph = FullGraph(self.work)

    def decode_request(self, request) -> list[Any]:  # type: ignore[no-untyped-def]  # noqa: ANN001 (it would be a schema)
        """Return the texts of a request, texts or pairs."""
        return request.get("texts") or [request["text"]]

    def predict(self, requests: Sequence[list[Any]]) -> list[list[dict[str, Any]]]:
        """Answer a batch of whole requests."""
        answers = iter(self.graph.predict([text for texts in requests for text in texts]))
        return [[next(answers) for _ in texts] for texts in requests]

    def encode_response(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return answers as they are."""
        return output


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--port", type=int, required=True)
    chosen = parser.parse_args()
    classifier = Classifier(max_batch_size=32, batch_timeout=0.002)
    classifier.work = chosen.work
    server = litserve.LitServer(classifier, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=chosen.port, generate_client_file=False, log_level="warning", num_api_servers=1)


if __name__ == "__main__":
    main()
