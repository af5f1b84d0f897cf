"""Records what Pulsar's V5 client and broker say to each other about a scalable topic, as `scalable.hex`.

Usage, in the tests folder:

    python -m vectors.capture_scalable --broker-port 6650 --web-port 8080 --libs FOLDER [--listen-port 6651]

Run it against a real Apache Pulsar on loopback; `--libs` holds the jars of pulsar-client-v5, as `make interop` leaves
them. CaptureScalable.java does what the client does. The frames are written as capture.py writes them.
"""

from __future__ import annotations

import argparse
import subprocess
import urllib.request
from pathlib import Path

from vectors.capture import Recorder, name_of

TOPIC = "public/default/golden"
KEPT = "SCALABLE_TOPIC"
HOW = "pulsar-client-v5 and Apache Pulsar 5.0.0-M1, a topic watched and consumed while it splits"


def rest(method: str, url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        answer.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--broker-port", type=int, required=True)
    parser.add_argument("--web-port", type=int, required=True)
    parser.add_argument("--libs", type=Path, required=True)
    parser.add_argument("--listen-port", type=int, default=6651)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    topic = f"http://127.0.0.1:{options.web_port}/admin/v2/scalable/{TOPIC}"
    rest("PUT", f"{topic}?numInitialSegments=1")
    recorder = Recorder(options.broker_port, options.listen_port)
    source = Path(__file__).parent / "CaptureScalable.java"
    command = ["java", "-cp", f"{options.libs}/*", str(source)]
    client = subprocess.Popen(
        [*command, f"pulsar://127.0.0.1:{options.listen_port}", f"topic://{TOPIC}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    while (line := client.stdout.readline()) and line.strip() != "split":
        pass
    rest("POST", f"{topic}/split/0")
    client.stdin.write("\n")
    client.stdin.close()
    client.wait(60)
    lines = [f"# Captured by capture_scalable.py: {HOW}."]
    for mark, frame in recorder.take():
        if name_of(frame).startswith(KEPT):
            lines += [f"# {name_of(frame)}", f"{mark} {frame.hex()}"]
    (options.out / "scalable.hex").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
