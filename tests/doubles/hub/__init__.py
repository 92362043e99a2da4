"""An emulated Hugging Face Hub in a process of its own, for the unmodified ``huggingface_hub`` and ``hf_xet``.

It serves storage buckets, the xet data plane over HTTP, and model repositories that are read. See ``client.Hub``.
What is not known of the real service is a guess: marked ``# guess`` where it is made, listed at the top of that file.
"""

from .client import Hub, Stored
from .faults import Fault, Logged

__all__ = ["Fault", "Hub", "Logged", "Stored"]
