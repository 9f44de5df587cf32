"""A picture of the top of a report's page, for the docs: python -m benchmarks.report_screenshot PAGE PNG."""

import argparse
import base64
from pathlib import Path

from tests.report.chromium import chromium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--width", type=int, default=900)
    parser.add_argument("--height", type=int, default=2300)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    with chromium() as browser:
        browser.open(given.page, width=given.width, dark=given.dark)
        clip = {"x": 0, "y": 0, "width": given.width, "height": given.height, "scale": 1}
        made = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        given.png.write_bytes(base64.b64decode(made["data"]))
    print(f"written: {given.png}")


if __name__ == "__main__":
    main()
