"""An emulated Hugging Face Hub in a process of its own, for the unmodified ``huggingface_hub`` and ``hf_xet``.

It serves storage buckets, the xet data plane over HTTP, and model repositories that are read. In a test::

    @pytest.fixture
    def hub(tmp_path):
        with Hub(tmp_path / "hub") as hub:
            yield hub

``hub.env(home)`` is the environment of a client process; ``client.fresh_client`` is for the tests' own process.
What is not known of the real service is a guess: marked ``# guess`` where it is made, listed at the top of that file.
"""

from .client import Hub, Stored
from .faults import Fault, Logged

__all__ = ["Fault", "Hub", "Logged", "Stored"]
