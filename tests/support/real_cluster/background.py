"""Work that goes on in a thread beside a test."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(ABC):
    """Runs until its `with` block ends."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Work until _stop is set."""
