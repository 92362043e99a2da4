"""An emulated Runpod (REST v2) in a process of its own, with pods that are records or real machines with sshd.

In a test::

    @pytest.fixture(scope="session")
    def running(tmp_path_factory):
        with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
            yield sandbox

    @pytest.fixture
    def sandbox(running):
        running.reset()
        yield running
        running.check()

``docs/sandbox.md`` tells how to rehearse on it by hand.
"""

from .client import Sandbox
from .faults import NO_STOCK, Fault, Quirks, no_stock
from .journal import Entry

__all__ = ["NO_STOCK", "Entry", "Fault", "Quirks", "Sandbox", "no_stock"]
