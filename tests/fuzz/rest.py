"""Requests made up from `/openapi.json`, sent to a broker of its own: none may be answered with a 5xx but 503.

Run by `make fuzz`; it needs schemathesis, which only that target installs. Most of the made-up tenants, namespaces,
topics and subscriptions are replaced by some that exist (`rest_names.py`), or a request would seldom get far.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.broker_process import BrokerProcess

HERE = Path(__file__).parent


def run(broker: BrokerProcess, seconds: int) -> int:
    url = f"http://127.0.0.1:{broker.http_port}/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
    command += ["run", url, "--max-time", str(seconds), "--phases", "examples,coverage,fuzzing"]
    # How many made-up requests cannot be sent, or how long they take to make up, says nothing of the broker.
    command += ["--suppress-health-check", "all"]
    command += sys.argv[1:]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "fuzz.rest_names", "PYTHONPATH": _path()}
    return subprocess.run(command, env=environment, check=False).returncode


def _path() -> str:
    return os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])


def main() -> None:
    seconds = int(os.environ.get("FUZZ_SECONDS", "600"))
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        broker.put("tenants/fuzz", {"allowedClusters": ["standalone"]})
        for place in ("fuzz/ns", "fuzz/default", "public/ns", "public/default"):
            if place != "public/default":
                broker.put(f"namespaces/{place}")
            broker.put(f"persistent/{place}/t/subscription/s")
            broker.put(f"persistent/{place}/p/partitions", 2)
            broker.put(f"scalable/{place}/split?numInitialSegments=2")
        code = run(broker, seconds)
        # Whatever it was sent, it still serves.
        assert broker.get("clusters") is not None
    sys.exit(code)


if __name__ == "__main__":
    main()
