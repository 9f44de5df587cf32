"""Headless Chromium for tests and benchmarks of the page: a new profile, no network of its own, everything logged."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BINARY, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
MISSING = None if BINARY and DRIVER else "needs chromium and chromedriver on PATH"
QUIET = ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync")
ALONE = ("disable-background-networking", "disable-component-update")


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Give a browser, and end it."""
    from selenium import webdriver

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        for argument in (*QUIET, *ALONE, f"user-data-dir={profile}"):
            options.add_argument(f"--{argument}")
        options.binary_location = BINARY or ""
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """A browser with a few words for what the tests do."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1000, dark: bool = False, height: int = 900) -> float:
        """Open a page, wait until all figures are drawn, and return the seconds from navigation to that moment."""
        self.driver.get_log("browser"), self.driver.get_log("performance")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("dark" if dark else "light")
        self.driver.get(page.absolute().as_uri())
        self.drawn()
        return self.run("return performance.getEntriesByName('drawn')[0].startTime") / 1000

    def prefer(self, scheme: str) -> None:
        """Set what the reader prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments):
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def drawn(self) -> None:
        """Wait until all figures are drawn."""
        until = time.monotonic() + 60
        while self.run("return document.documentElement.dataset.drawn") != "yes":
            assert time.monotonic() < until, "the figures are not drawn within a minute"
            time.sleep(0.02)

    def choose(self, selector: str, value: str) -> None:
        """Choose a value in a select box, as a reader does."""
        script = "const box = document.querySelector(arguments[0]); box.value = arguments[1];"
        self.run(script + "box.dispatchEvent(new Event('change', {bubbles: true}))", selector, value)
        self.drawn()

    def complaints(self) -> list[str]:
        """Return what is in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the open page has asked for, itself among them."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent if params["documentURL"] == self.driver.current_url]
