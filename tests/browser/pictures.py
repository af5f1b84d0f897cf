"""Makes the pictures of README and docs from a real run of the demo: `make pictures`.

The live page is looked at once all events are stored, the report when it is done. Nothing is killed meanwhile, as the
page forgets the past with its broker.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.browser import Browser, chromium

PAGE = (1320, 952)
REPORT = (1100, 1240)


def main(folder: Path, options: list[str]) -> int:
    if chromium() is None:
        print("pictures: no Chromium here: install one (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="anabranch-pictures-") as report, Browser() as browser:
        command = [sys.executable, "-u", "-m", "anabranch.cli", "demo", "--no-browser", "--no-kill"]
        process = subprocess.Popen(
            [*command, "--report", report, *options], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        page = None
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.search(r"live page: (\S+)", line):
                page = browser.page(found[1], width=PAGE[0], height=PAGE[1], dark=True)
            elif "have a receipt" in line and page is not None:
                page.shows("River of segments")
                page.screenshot(folder / "river.png")
        process.stdout.close()
        if process.wait() or page is None:
            print("pictures: the demo failed, so its report is no picture to show", file=sys.stderr)
            return 1
        shown = browser.page((Path(report) / "report.html").as_uri(), width=REPORT[0], height=REPORT[1])
        shown.shows("The river of segments")
        shown.screenshot(folder / "demo-report.png")
    print(f"pictures: {folder / 'river.png'}, {folder / 'demo-report.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
