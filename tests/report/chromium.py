"""Headless Chromium for tests and benchmarks of the page: a new profile, no network of its own, everything logged."""

import json
import shutil
import tempfile
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
        """Open a page and return the seconds from navigation until it is complete."""
        self.driver.get_log("browser"), self.driver.get_log("performance")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("dark" if dark else "light")
        self.driver.get(page.absolute().as_uri())
        return self.run("return performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000

    def prefer(self, scheme: str) -> None:
        """Set what the reader prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments):
        """Run a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Return what is in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the open page has asked for, itself among them."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [params["request"]["url"] for params in sent if params["documentURL"] == self.driver.current_url]
