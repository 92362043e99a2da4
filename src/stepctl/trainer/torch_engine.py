"""The engine that really trains: TRL's trainers and a LoRA adapter by PEFT.

Importing this module is cheap; ``imports`` pays for torch and its family, so that the phases of a job can be timed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepctl import __version__
from stepctl.base.errors import StepctlError, UsageError
from stepctl.jobs.spec import JobSpec
from stepctl.lineage.records import Manifest
from stepctl.traces.rows import Row
from stepctl.trainer import environment
from stepctl.trainer.engine import Loaded, Step

if TYPE_CHECKING:
    from stepctl.trainer.device import Placement
    from stepctl.trainer.methods import Method
    from stepctl.trainer.model import Trainable


class TorchEngine:
    """An :class:`~stepctl.trainer.engine.Engine` for one job; another job needs another ``load``."""

    def __init__(self) -> None:
        self._spec: JobSpec | None = None
        self._trainable: Trainable | None = None
        self._method: Method | None = None

    def imports(self, method: str) -> None:
        """Import torch, transformers, PEFT and the method's trainer, with all off that would send, print or cache.

        Raises:
            UsageError: one of several processes, or a package is not installed.
        """
        environment.prepare()
        try:
            from stepctl.trainer import loop, state  # noqa: F401
            from stepctl.trainer.methods import load_method

            load_method(method)
        except ImportError as error:
            raise UsageError(
                f"this Python cannot train: {error}", next="pip install 'stepctl[train]'", code="not_installed"
            ) from error
        environment.quiet()

    def load(self, spec: JobSpec, hf_token: str | None) -> Loaded:
        """Load the base model and give it the seeded adapter; whatever was loaded before is forgotten.

        Raises:
            StepctlError: the device, the model or the target modules are not there.
            OutOfMemory: the model does not fit.
        """
        from stepctl.trainer import device, model, size
        from stepctl.trainer.methods import make_method, texts_at_once

        self._spec = self._trainable = self._method = None
        train, texts = spec.train, texts_at_once(spec.identity.method)
        placement = device.choose(
            train.device,
            train.precision,
            train.gpu_ids,
            lambda: size.measure(spec.model, spec.lora, train.max_length, hf_token, texts),
        )
        device.settle(placement)
        with device.memory_errors():
            base = model.load_base(spec.model, placement, hf_token)
            placement = device.landed(placement, base)
            if model.vocabulary(base) < spec.identity.vocab_size:
                raise StepctlError(
                    f"the model has {model.vocabulary(base)} embeddings, and the lineage a vocabulary of "
                    f"{spec.identity.vocab_size}",
                    next="train with the base model that the lineage started from",
                    code="vocabulary",
                )
            adapted = model.add_adapter(base, spec.lora, spec.train.seed, spec.model.source, spec.model.revision)
            if not placement.spread:
                adapted.to(placement.device)
        parameters = model.adapter_parameters(adapted)
        optimizer = model.make_optimizer(parameters, spec.train.learning_rate, spec.train.weight_decay)
        self._spec = spec
        self._trainable = model.Trainable(adapted, parameters, optimizer, placement)
        self._method = make_method(spec.identity.method, self._trainable, spec.train)
        with device.memory_errors():
            repeatable = placement.device.type != "cuda" or device.make_repeatable(self._rehearse)
        return Loaded(
            device=placement.where,
            precision=placement.precision,
            reason=placement.reason,
            versions=_versions(placement, str(getattr(adapted.config, "_attn_implementation", ""))),
            repeatable=repeatable,
        )

    def _rehearse(self) -> None:
        from stepctl.trainer.scoring import rehearse

        rehearse(self._ready()[1])

    def restore(self, folder: Path, manifest: Manifest) -> None:
        """Put a verified checkpoint in place. Changed learning rate and weight decay take effect, moments are kept.

        Raises:
            DamagedCheckpoint: a file does not fit; it and what differs are named.
        """
        from stepctl.trainer import state
        from stepctl.trainer.methods import has_reference

        spec, trainable, _ = self._ready()
        reference = has_reference(spec.identity.method) and spec.identity.origin is not None
        state.restore(folder, trainable, spec.lora, manifest.step, reference=reference)

    def init_from(self, folder: Path) -> None:
        """Put the adapter of a PEFT folder in place; the optimizer stays fresh. It is the reference from now on.

        Raises:
            UsageError: it is not an adapter of this shape in safetensors.
        """
        from stepctl.trainer import state
        from stepctl.trainer.methods import has_reference

        spec, trainable, _ = self._ready()
        state.init_from(folder, trainable.parameters, spec.lora)
        if has_reference(spec.identity.method):
            trainable.reference = {name: p.detach().clone() for name, p in trainable.parameters.items()}

    def evaluate(self, rows: Sequence[Row]) -> float:
        """Mean loss of ``rows`` by the job's method, without dropout; changes no state.

        Raises:
            OutOfMemory: no memory left.
        """
        from stepctl.trainer import device, loop

        spec, trainable, method = self._ready()
        with device.memory_errors():
            return loop.evaluate(trainable, method, rows, spec.train)

    def train(self, rows: Sequence[Row], from_step: int, on_step: Callable[[Step], bool]) -> None:
        """Make ceil(len(rows) / grad_accum) steps in file order; ``on_step`` ends the loop by returning False.

        Raises:
            StepctlError: ``from_step`` is not where the adapter is, or a row cannot be trained with this model.
            NonFinite: nothing of the step it names may be committed.
            OutOfMemory: no memory left.
        """
        from stepctl.trainer import device, loop

        spec, trainable, method = self._ready()
        if from_step != trainable.step:
            raise StepctlError(
                f"the adapter is at step {trainable.step}, and the job starts at step {from_step}",
                safe="nothing was trained",
                code="wrong_step",
            )
        with device.memory_errors():
            loop.train(trainable, method, rows, spec.train, on_step)

    def save(self, folder: Path) -> None:
        """Write the files of a checkpoint into ``folder``, which is made; fsync is the caller's.

        Raises:
            StepctlError: a weight is not finite.
        """
        from stepctl.trainer import state

        spec, trainable, _ = self._ready()
        folder.mkdir(parents=True, exist_ok=True)
        state.write(folder, trainable, spec.train)

    def _ready(self) -> tuple[JobSpec, Trainable, Method]:
        if self._spec is None or self._trainable is None or self._method is None:
            raise RuntimeError("load() comes first")
        return self._spec, self._trainable, self._method


def _versions(placement: Placement, attention: str) -> dict[str, str]:
    import peft
    import torch
    import transformers
    import trl

    from stepctl.trainer.device import cpu_name, device_name

    spread = {"device_map": placement.device_map} if placement.spread else {}
    processor = {"cpu": cpu_name()} if placement.device.type == "cpu" else {}
    return {
        "stepctl": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
        "trl": str(trl.__version__),
        "peft": str(peft.__version__),
        "threads": str(torch.get_num_threads()),
        "device": device_name(placement),
        "precision": placement.precision,
        "cpu_capability": str(torch.backends.cpu.get_cpu_capability()),
        "attention": attention,
        **processor,
        **spread,
    }
