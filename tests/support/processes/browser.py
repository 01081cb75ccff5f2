"""Debian's chromium without a screen, driven by selenium, and axe-core on what it shows."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from selenium_axe_python import Axe

Found = TypeVar("Found")
TIMEOUT = 60.0  # real seconds
ELSEWHERE = "agent.example"  # a name that leads to this machine, as another site's may
WIDE, NARROW = 1280, 400  # CSS pixels


class Browser:
    """One window. Its methods wait, so that a test calls them in a thread."""

    def __init__(self, directory: Path) -> None:
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for flag in (
            "headless=new",
            "no-sandbox",  # which root has not
            "disable-dev-shm-usage",
            "disable-background-networking",
            "no-first-run",
            f"user-data-dir={directory}",
            f"host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
        ):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service("/usr/bin/chromedriver"))
        self.look()

    def close(self) -> None:
        self.driver.quit()

    def look(self, *, width: int = WIDE, dark: bool = False) -> None:
        """Have a window of that width in light or dark colours."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url: str) -> None:
        """Load a page, when a server listens there; what the one before said is forgotten."""
        self.driver.get("about:blank")
        self.messages()
        WebDriverWait(self.driver, TIMEOUT, ignored_exceptions=(WebDriverException,)).until(
            lambda driver: driver.get(url) is None
        )

    def find(self, css: str) -> WebElement:
        """The first element, when it is there."""
        return self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, css))[0]

    def text(self, css: str) -> str:
        return self.find(css).text

    def until_says(self, css: str, *texts: str) -> str:
        """Return an element's text when it has all of these."""
        found = ""

        def says() -> bool:
            nonlocal found
            found = self.text(css)
            return all(each in found for each in texts)

        try:
            self.until(says)
        except TimeoutException as err:
            said = f"wanted {css} with {texts}, found {found!r}; console: {self.messages()}"
            raise AssertionError(said) from err
        return found

    def until(self, look: Callable[[], Found]) -> Found:
        """Return what is found, when it is something."""
        return WebDriverWait(self.driver, TIMEOUT).until(lambda _: look())

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns that runs in the page."""
        return self.driver.execute_script(script, *arguments)

    def messages(self) -> list[str]:
        """What the page has written to its console since the last call: warnings and errors."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def violations(self) -> list[str]:
        """Return what axe-core finds that keeps a user from using the page."""
        axe = Axe(self.driver)
        axe.inject()
        return [
            f"{rule['id']}: {node['target']}: {node['failureSummary']}"
            for rule in axe.run()["violations"]
            for node in rule["nodes"]
        ]

    def overhang(self) -> int:
        """CSS pixels by which the page is wider than the window."""
        return int(
            self.run("const r = document.documentElement; return r.scrollWidth - r.clientWidth")
        )

    def foreign_requests(self) -> list[str]:
        """Addresses of others that the page has asked."""
        script = "return performance.getEntriesByType('resource').map((each) => each.name)"
        origin = str(self.run("return location.origin"))
        return [each for each in self.run(script) if not each.startswith(f"{origin}/")]


@contextlib.contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    made = Browser(directory)
    try:
        yield made
    finally:
        made.close()
