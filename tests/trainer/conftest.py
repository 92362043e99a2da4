"""The tiny model, once a session, and a job over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trainer.tiny import VOCABULARY, Job, build_tiny

from stepctl.config.model import LoraSettings, TrainSettings
from stepctl.jobs.spec import JobSpec, ModelSpec, TraceSpec
from stepctl.lineage.records import Identity


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    torch.set_num_threads(1)
    return build_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def job(tiny: Path) -> Job:
    lora = LoraSettings(r=4, alpha=8)
    identity = Identity(
        model=str(tiny),
        revision="files:0",
        method="sft",
        r=lora.r,
        alpha=lora.alpha,
        dropout=lora.dropout,
        target_modules=lora.target_modules,
        vocab_size=VOCABULARY,
    )
    return Job(
        JobSpec(
            version=1,
            release="0",
            run="run",
            identity=identity,
            model=ModelSpec(source=str(tiny)),
            lora=lora,
            train=TrainSettings(learning_rate=1e-2, device="cpu", seed=7),
            trace=TraceSpec(sha256="", files=(), rows_total=0),
            eval=None,
            bucket="",
            lineage="main",
            parent="root",
            parent_sha256=None,
            from_step=0,
            new_root=False,
            key=None,
            keep_checkpoints=3,
        )
    )
