"""What must be so in the process before torch and its family are imported. Imports none of them."""

from __future__ import annotations

import os
import sys
import warnings

from stepctl.base.errors import UsageError

FIXED = {
    # Nothing is sent anywhere: TRL and the Hub client report use unless told not to, and transformers would ask the
    # Hub to convert a model repository that has no safetensors.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # cuBLAS sums in a fixed order only with a workspace of its own.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_PROCESS_GROUP = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def prepare() -> None:
    """Set the process up to train alone, send nothing and draw no bars.

    Raises:
        UsageError: a launcher started several processes; this would train the same rows in each.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size not in ("", "1"):
        raise UsageError(
            f"a launcher started this as one of {size} processes, and a job trains in one",
            next="start it without torchrun or accelerate (unset WORLD_SIZE)",
        )
    os.environ.update(FIXED)
    # `accelerate` takes the precision and the device from these when the caller says "none".
    for name in [n for n in os.environ if n.startswith("ACCELERATE_") or n in _PROCESS_GROUP]:
        del os.environ[name]
    hub = sys.modules.get("huggingface_hub.constants")
    if hub is not None:  # imported earlier for a bucket: it read the environment then
        hub.HF_HUB_DISABLE_TELEMETRY = True  # type: ignore[attr-defined]


def quiet() -> None:
    """Silence what only a call can silence; imports transformers and datasets."""
    import datasets
    import transformers

    # Notes for the authors of TRL and transformers, at every start.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    # Rows stay in memory: no fingerprinted copy in a cache folder.
    datasets.disable_caching()
