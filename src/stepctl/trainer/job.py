"""The order of a job: judge, load, restore, step, save, commit, report. Imports no torch: an Engine trains."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.files import make_dirs, write_atomic
from stepctl.base.names import iso, utc_now
from stepctl.jobs.directory import JobDir, Payload
from stepctl.jobs.events import Committed, Device, Evaluation, Failed, Progress, Saved, Sink, Status, Warned
from stepctl.jobs.result import JobResult
from stepctl.jobs.spec import JobSpec, TraceSpec
from stepctl.jobs.transfers import Transfers
from stepctl.lineage.buckets import Bucket, open_bucket
from stepctl.lineage.ledger import changes, decode_ledger
from stepctl.lineage.records import MANIFEST_VERSION, LedgerLine, Manifest, checkpoint_name
from stepctl.lineage.store import (
    clean_leftovers,
    commit,
    encode_manifest,
    entries_of,
    fetch_checkpoint,
    ledger_for,
    lines_of,
    prune,
)
from stepctl.models.resolve import resolve_model
from stepctl.traces.judge import judge
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Row, Source
from stepctl.traces.rules import Rules
from stepctl.trainer.engine import Engine, Loaded, OutOfMemory, Step
from stepctl.trainer.exact import differences


class Cancelled(Exception):
    """Asked to end without saving."""


@dataclass
class Job:
    """One job as it goes."""

    dir: JobDir
    spec: JobSpec
    engine: Engine
    emit: Sink
    clock: Callable[[], float] = time.monotonic
    result: JobResult = field(init=False)
    loaded: Loaded | None = None
    hf_token: str | None = field(default=None, repr=False)
    parent: str = ""
    ledger: tuple[LedgerLine, ...] = ()
    rendering: str = ""
    """How the model's folder renders conversations, see :class:`~stepctl.traces.render.tokenizer.TextTokenizer`."""
    extends: Manifest | None = None
    """Of the checkpoint that the job started from."""
    committed_step: int = 0
    committing: bool = False
    unsure: tuple[Manifest, LedgerLine] | None = None
    """A checkpoint on the way whose commit failed; it may have got as far as its manifest."""

    def __post_init__(self) -> None:
        self.result = JobResult(state="failed", step=self.spec.from_step, rows_done=self.spec.trace.rows_start)
        self.parent, self.committed_step = self.spec.parent, self.spec.from_step

    @contextmanager
    def phase(self, name: str, timing: str) -> Iterator[None]:
        """Say that a phase begins and add what it takes to ``timings_sec``."""
        self.check_cancel()
        self.emit(Status(phase=name))
        began = self.clock()
        try:
            yield
        finally:
            timings = self.result.timings_sec
            setattr(timings, timing, getattr(timings, timing) + self.clock() - began)

    def check_cancel(self) -> None:
        """End when a cancel was asked for."""
        if self.dir.requested() == "cancel":
            raise Cancelled

    def bucket(self) -> Bucket:
        """Where the lineage lives; its transfers are told in events."""
        show = Transfers(self.emit, self.clock)
        return open_bucket(self.spec.bucket, self.hf_token, report=show)

    # --- the phases, in order -------------------------------------------------------------------------------------

    def run(self, payload: Payload) -> None:
        """Everything from judging to the last commit; ``result`` tells how far it came."""
        self.hf_token = payload.hf_token
        with self.phase("judging", "data"):
            rows, held_out = self.judge(payload)
        with self.phase("imports", "imports"):
            self.engine.imports(self.spec.identity.method)
        with self.phase("model", "model"):
            self.load(payload.hf_token)
        with self.phase("data", "data"):
            self.restore()
        if held_out:
            with self.phase("eval", "eval"):
                self.result.eval_loss_before = self.evaluate(held_out, "before")
        with self.phase("steps", "steps"):
            self.train(rows)
        if self.result.step > self.committed_step:
            self.save_and_commit(last=True)
        if held_out and self.result.state == "done":
            self.evaluate_after(held_out)

    def judge(self, payload: Payload) -> tuple[list[Row], list[Row]]:
        """The very judgement that the client made, made again where the job runs."""
        spec = self.spec
        model = resolve_model(spec.model.source, spec.model.revision, payload.hf_token)
        if model.revision != spec.identity.revision:
            raise StepctlError(
                f"the model {spec.model.source} changed since the call was planned",
                next="run the command again",
                code="model_changed",
            )
        tokenizer = load_tokenizer(model.folder)
        self.rendering = tokenizer.rendering
        rows = self._judged(spec.trace, payload.trace, tokenizer)
        return rows[spec.trace.rows_start :], self._judged(spec.eval, payload.eval, tokenizer)

    def _judged(self, trace: TraceSpec | None, data: tuple[bytes, ...], tokenizer: TextTokenizer) -> list[Row]:
        if trace is None:
            return []
        sources = [Source(name=f.name, data=d) for f, d in zip(trace.files, data, strict=True)]
        judged = judge(sources, Rules.of(self.spec.identity.method, self.spec.train), tokenizer)
        same = judged.sha256 == trace.sha256 and judged.kept == trace.rows_total
        # A client of an earlier release does not say which rows.
        if judged.refusals or not same or trace.rows_sha256 not in ("", judged.rows_sha256):
            raise StepctlError(
                "the examples that arrived are not those that were judged",
                next="use the same release of stepctl on both machines",
                code="trace_changed",
            )
        return judged.rows

    def load(self, hf_token: str | None) -> None:
        """The base model on its device, with a seeded adapter."""
        loaded = self.engine.load(self.spec, hf_token)
        self.loaded = msgspec.structs.replace(loaded, versions={**loaded.versions, "chat_template": self.rendering})
        self.result.device, self.result.precision = self.loaded.device, self.loaded.precision
        self.emit(Device(device=self.loaded.device, precision=self.loaded.precision, reason=self.loaded.reason))
        if not loaded.repeatable:
            self.result.exact = False
            what = "bit-equality with one unsplit call is not promised: the GPU cannot repeat all sums of this model"
            self.emit(Warned(code="inexact", message=what))

    def restore(self) -> None:
        """The state that the parent checkpoint holds; nothing when the lineage starts here."""
        spec = self.spec
        if spec.parent_sha256 is None:
            if spec.init_from is not None:
                self.engine.init_from(Path(spec.init_from))
            return
        folder = self.dir.path / "restore"
        shutil.rmtree(folder, ignore_errors=True)
        make_dirs(folder)
        try:
            bucket = self.bucket()
            manifest = fetch_checkpoint(bucket, spec.lineage, spec.parent, spec.parent_sha256, folder)
            self.ledger = decode_ledger((folder / "ledger.jsonl").read_bytes())
            self.engine.restore(folder, manifest)
            self._compare(manifest)
            self.extends = manifest
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _compare(self, parent: Manifest) -> None:
        """Another machine, release or thread count rounds otherwise; what is not exact once stays so."""
        assert self.loaded is not None
        changed = differences(parent.versions, self.loaded.versions)
        self.result.exact = self.result.exact and parent.exact and not changed
        if changed:
            what = f"bit-equality with one unsplit call is not promised from here on; changed since step {parent.step}"
            self.emit(Warned(code="inexact", message=f"{what}: {', '.join(changed)}"))

    def evaluate(self, rows: list[Row], when: str) -> float:
        """Held-out loss; said in an event."""
        loss = self.engine.evaluate(rows)
        self.emit(Evaluation(when=when, loss=loss, step=self.result.step))
        return loss

    def evaluate_after(self, rows: list[Row]) -> None:
        """The steps are committed: neither a failure nor a cancel can undo them now."""
        try:
            with self.phase("eval", "eval"):
                self.result.eval_loss = self.evaluate(rows, "after")
        except (Cancelled, OutOfMemory, MemoryError, RuntimeError) as error:
            why = "cancelled" if isinstance(error, Cancelled) else type(error).__name__
            self.emit(Warned(code="eval_failed", message=f"the held-out loss after the steps is missing: {why}"))

    def train(self, rows: list[Row]) -> None:
        """The steps; a stop request ends them after the step at hand."""
        group, result, spec = self.spec.train.grad_accum, self.result, self.spec
        total = math.ceil(len(rows) / group)
        began = saved = self.clock()
        result.state = "done"

        def on_step(step: Step) -> bool:
            nonlocal saved
            result.losses.append(step.loss)
            result.step = step.step
            done = step.step - spec.from_step
            result.rows_done = spec.trace.rows_start + min(done * group, len(rows))
            result.supervised_tokens += step.supervised_tokens
            result.peak_memory_bytes = max(result.peak_memory_bytes, step.peak_memory_bytes)
            elapsed = self.clock() - began
            self.emit(
                Progress(
                    step=step.step,
                    steps_done=done,
                    steps_total=total,
                    rows_done=result.rows_done,
                    loss=step.loss,
                    learning_rate=step.learning_rate,
                    grad_norm=step.grad_norm,
                    tokens=step.tokens,
                    supervised_tokens=step.supervised_tokens,
                    elapsed_sec=elapsed,
                    eta_sec=elapsed / done * (total - done),
                    peak_memory_bytes=step.peak_memory_bytes,
                )
            )
            self.check_cancel()
            if done < total and self.dir.requested() == "stop":
                result.state = "stopped"
                return False
            if done < total and self.clock() - saved >= 60 * spec.train.save_every_minutes:
                self._on_the_way()
                saved = self.clock()
            return True

        if self.dir.requested() == "stop":
            result.state = "stopped"
            return
        self.engine.train(rows, spec.from_step, on_step)

    # --- saving ---------------------------------------------------------------------------------------------------

    def _on_the_way(self) -> None:
        """A checkpoint that only shortens what a death would lose: without room for it the steps go on."""
        try:
            self.save_and_commit(last=False)
        except OSError as error:
            self.emit(Warned(code="save_failed", message=f"a checkpoint on the way could not be saved: {error}"))

    def save_and_commit(self, *, last: bool) -> None:
        """Save the newest step here, then commit it; a commit that fails keeps what is saved."""
        name = checkpoint_name(self.result.step, self.spec.run)
        folder = self.dir.out / name
        self.look_again()
        with self.phase("saving", "save"):
            manifest, line = self.save(folder, name)
        began = self.clock()
        self.committing = True
        try:
            self.commit(folder, manifest)
        except (OSError, StepctlError) as error:
            self.unsure = manifest, line
            self._commit_failed(error, name, last)
        else:
            self.parent, self.ledger, self.committed_step = name, (*self.ledger, line), manifest.step
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            self.committing = False
            self.result.timings_sec.commit += self.clock() - began

    def look_again(self) -> None:
        """Count the checkpoint whose commit failed if the bucket has it after all, and extend it: else a fork follows.

        What was left of that commit is done now.
        """
        if self.unsure is None:
            return
        (manifest, line), self.unsure = self.unsure, None
        try:
            stored = lines_of(self.bucket(), self.spec.lineage, self.spec.run)
            if all(known.checkpoint != manifest.checkpoint for known in stored):
                return
            self.parent, self.ledger, self.committed_step = manifest.checkpoint, (*self.ledger, line), manifest.step
            self.result.checkpoint = manifest.checkpoint
            self.commit(self.dir.out / manifest.checkpoint, manifest)
        except (OSError, StepctlError) as error:
            what = error.message if isinstance(error, StepctlError) else str(error)
            self.emit(Warned(code="commit_failed", message=f"the last checkpoint on the way is in doubt: {what}"))

    def save(self, folder: Path, name: str) -> tuple[Manifest, LedgerLine]:
        """Write a whole checkpoint here, its manifest last."""
        spec, result = self.spec, self.result
        shutil.rmtree(self.dir.out, ignore_errors=True)
        make_dirs(folder)
        now = iso(utc_now())
        assert self.loaded is not None
        settings, versions = msgspec.to_builtins(spec.train), self.loaded.versions
        line = LedgerLine(
            checkpoint=name,
            parent=self.parent,
            run=spec.run,
            key=spec.key,
            trace_sha256=spec.trace.sha256,
            rows_done=result.rows_done,
            rows_total=spec.trace.rows_total,
            from_step=spec.from_step,
            step=result.step,
            loss=result.losses[-1],
            created_at=now,
            changed=changes(self.extends, settings, versions),
            exact=result.exact,
            rows_sha256=spec.trace.rows_sha256 or None,
        )
        self.engine.save(folder)
        write_atomic(folder / "ledger.jsonl", ledger_for(self.ledger, line))
        manifest = Manifest(
            version=MANIFEST_VERSION,
            checkpoint=name,
            lineage=spec.lineage,
            parent=self.parent,
            step=result.step,
            run=spec.run,
            key=spec.key,
            trace_sha256=spec.trace.sha256,
            rows_done=result.rows_done,
            rows_total=spec.trace.rows_total,
            identity=spec.identity,
            settings=settings,
            versions=versions,
            exact=result.exact,
            loss=line.loss,
            created_at=now,
            files=entries_of(folder),
        )
        write_atomic(folder / "manifest.json", encode_manifest(manifest))
        return manifest, line

    def commit(self, folder: Path, manifest: Manifest) -> None:
        """Into the bucket; then the oldest checkpoints beyond those kept, and own leftovers, are removed."""
        spec = self.spec
        bucket = self.bucket()
        done = commit(
            bucket,
            folder,
            manifest,
            choose_root=spec.new_root,
            notify=lambda what: self.emit(Status(phase=what)),
        )
        size = sum(f.size for f in manifest.files)
        self.result.checkpoint = done.checkpoint
        if spec.staged:
            # Nothing is pruned here: what is not fetched yet is needed, up to the parent of all.
            self.emit(Saved(checkpoint=done.checkpoint, step=manifest.step, rows_done=manifest.rows_done, bytes=size))
            return
        self.result.forked = done.forked
        self.emit(
            Committed(
                checkpoint=done.checkpoint,
                step=manifest.step,
                rows_done=manifest.rows_done,
                bytes=size,
                forked=done.forked,
            )
        )
        try:
            prune(bucket, spec.lineage, spec.keep_checkpoints)
            clean_leftovers(bucket, spec.lineage, spec.run, utc_now())
        except (OSError, StepctlError) as error:
            self.emit(Warned(code="prune_failed", message=f"old checkpoints were not removed: {error}"))

    def _commit_failed(self, error: OSError | StepctlError, name: str, last: bool) -> None:
        what = error.message if isinstance(error, StepctlError) else str(error)
        if not last:
            self.emit(Warned(code="commit_failed", message=f"a checkpoint on the way was not committed: {what}"))
            return
        self.result.state, self.result.checkpoint = "commit_pending", name
        self.result.error = {
            "code": "commit_pending",
            "message": f"step {self.result.step} is trained and saved here, but not in the bucket: {what}",
            "next": f"stepctl train attach {self.spec.run}",
        }
        self.emit(Failed(**self.result.error))
