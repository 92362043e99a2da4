"""What a trainer inherits of the environment it is started from."""

from __future__ import annotations

import os

# fmt: off
_INHERITED = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "PYTHONPATH",
    "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "STEPCTL_DEBUG",
    "STEPCTL_HUB_TIMEOUT",
))
# fmt: on
_INHERITED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH_", "PYTORCH_", "HF_XET_")


def clean_environment(env: dict[str, str]) -> dict[str, str]:
    """What a job inherits: a list of names it needs, so that no secret gets there by not being thought of."""
    kept = {k: v for k, v in env.items() if k in _INHERITED or k.startswith(_INHERITED_PREFIXES)}
    if "PYTHONPATH" in kept:
        # The trainer's current folder is another one.
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
    return {**kept, "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
