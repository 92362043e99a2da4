"""What is particular to a bucket of the Hub: batches, names, copies on this machine, damage, progress."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi
from tests.doubles.hub import Fault, Hub
from tests.lineage.making import extend, files_below, make, make_next

from stepctl.base.errors import DamagedCheckpoint, StepctlError, UsageError
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.buckets.base import Absent, Changed
from stepctl.lineage.buckets.hf_errors import NoBucket
from stepctl.lineage.records import Manifest
from stepctl.lineage.store import build_manifest, choose, commit, fetch_checkpoint, prune, read_lineage, verify

DATA = "GET /cas-[^/]+/data/"
UP = "POST /cas-"
BATCH = "POST .*/batch"


def bucket_of(url: str) -> str:
    return "/".join(url.removeprefix("hf://buckets/").split("/")[:2])


def at_home(name: str, base: Path) -> None:
    """From now on this process is on another machine, as far as copies are concerned."""
    os.environ["XDG_CACHE_HOME"] = str(base / name)


def grown(folder: Path, manifest: Manifest, files: dict[str, bytes]) -> tuple[Path, Manifest]:
    """The checkpoint with further files."""
    for path, data in files.items():
        (folder / path).write_bytes(data)
    about = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    for name in ("version", "files", "checkpoint"):
        del about[name]
    return folder, build_manifest(folder, **about)


# Batches.


def test_the_manifest_comes_alone_and_last(hub: Hub, url: str, work: Path) -> None:
    extend(open_bucket(url, hub.write, new=True), work, "a")
    stored = hub.stored(bucket_of(url))
    assert len(hub.requests(BATCH)) == 2
    prefix = "pre/main/checkpoints/00000001-a/"
    names = ("adapter.safetensors", "ledger.jsonl", "manifest.json", "reference/adapter.safetensors")
    assert sorted(stored) == [prefix + name for name in names]
    last = stored.pop(prefix + "manifest.json")
    assert len({file.uploaded for file in stored.values()}) == 1
    assert all(file.uploaded < last.uploaded for file in stored.values())


def test_many_files_go_in_several_batches(
    hub: Hub, url: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.hf_api

    monkeypatch.setattr(huggingface_hub.hf_api, "_BUCKET_BATCH_ADD_CHUNK_SIZE", 2)
    bucket = open_bucket(url, hub.write, new=True)
    folder, manifest = grown(*make(work, "a"), {f"extra-{n}": b"%d" % n for n in range(4)})
    commit(bucket, folder, manifest)
    assert len(hub.requests(BATCH)) == 4 + 1
    stored = hub.stored(bucket_of(url))
    assert max(stored.values(), key=lambda file: file.uploaded).path.endswith("/manifest.json")
    fetch_checkpoint(bucket, "main", manifest.checkpoint, None, tmp_path / "got")
    assert files_below(tmp_path / "got") == files_below(folder)


def test_a_batch_done_in_part_is_completed(hub: Hub, url: str, work: Path) -> None:
    hub.faults(Fault(BATCH, nth=1, refuse="/adapter"))
    bucket = open_bucket(url, hub.write, new=True)
    assert extend(bucket, work, "a").head == "00000001-a"
    assert verify(bucket, "main").damages == []


def test_a_batch_cut_in_the_middle_is_completed(hub: Hub, url: str, work: Path) -> None:
    hub.faults(Fault(BATCH, nth=1, cut=2))
    bucket = open_bucket(url, hub.write, new=True)
    assert extend(bucket, work, "a").head == "00000001-a"
    assert verify(bucket, "main").damages == []


def test_a_manifest_whose_answer_is_lost_is_not_stored_again(hub: Hub, url: str, work: Path) -> None:
    """Else it would count as stored later than it was, and a reader's head could change."""
    hub.faults(Fault(BATCH, nth=2, when="after", drop=True))
    assert extend(open_bucket(url, hub.write, new=True), work, "a").forked is False
    assert len(hub.requests(BATCH)) == 2


def test_a_delete_whose_answer_is_lost(hub: Hub, url: str, work: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for run in ("a", "b"):
        extend(bucket, work, run)
    hub.faults(Fault(BATCH, nth=1, when="after", drop=True), Fault(BATCH, nth=2, cut=1))
    assert prune(bucket, "main", 1) == ["00000001-a"]
    assert {path.split("/")[3] for path in hub.stored(bucket_of(url))} == {"00000002-b"}


def test_a_second_commit_sends_what_changed(hub: Hub, url: str, work: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    frozen = random.Random(0).randbytes(2 << 20)

    def extended(run: str) -> int:
        made = make_next(work, read_lineage(bucket, "main"), run)
        steps = {name: random.Random(run + name).randbytes(200 << 10) for name in ("adapter", "optimizer")}
        folder, manifest = grown(*made, {"reference.safetensors": frozen, **steps})
        hub.clear_requests()
        commit(bucket, folder, manifest)
        return hub.up()

    assert extended("a") > 2 << 20
    assert 400 << 10 < extended("b") < 420 << 10


# The bucket itself.


def test_reading_makes_no_bucket_and_writing_makes_a_private_one(hub: Hub, url: str, work: Path) -> None:
    new = open_bucket(url, hub.write, new=True)
    assert read_lineage(new, "main").empty
    assert list(new.list_folders()) == []
    for act in (lambda b: b.list_folders(), lambda b: read_lineage(b, "main"), lambda b: verify(b, "main")):
        with pytest.raises(NoBucket, match=f"no bucket {bucket_of(url)} "):
            act(open_bucket(url, hub.write))
    assert hub.requests("POST /api/buckets/[^/]+/[^/]+$") == []
    new.check_writable()
    assert hub.stored(bucket_of(url)) == {}
    with pytest.raises(NoBucket):
        open_bucket(url, hub.other).list_folders()
    assert read_lineage(open_bucket(url, hub.write), "main").empty


def test_names_that_begin_alike(hub: Hub, url: str, work: Path) -> None:
    """Prefixes and lineages are folders, whatever the Hub compares; long listings come in pages."""
    whole = url.removesuffix("/pre")
    urls = (whole, f"{whole}/pre", f"{whole}/pre2", f"{whole}/pre/deep")
    for number, place in enumerate(urls):
        for lineage in ("a", "ab"):
            made = make(work / str(number), f"{lineage}r", lineage=lineage)
            commit(open_bucket(place, hub.write, new=True), *made)
    hub.settings(page=3)
    for place in urls:
        bucket = open_bucket(place, hub.write)
        for lineage in ("a", "ab"):
            state = read_lineage(bucket, lineage)
            assert [info.manifest.run for info in state.checkpoints] == [f"{lineage}r"]
            assert (state.incomplete, verify(bucket, lineage).extra) == ([], [])
    assert list(open_bucket(urls[1], hub.write).list_folders()) == ["a", "ab", "deep"]
    assert list(open_bucket(urls[2], hub.write).list_folders()) == ["a", "ab"]
    assert list(open_bucket(whole, hub.write).list_folders()) == ["a", "ab", "pre", "pre2"]
    assert list(open_bucket(f"{whole}/pr", hub.write).list_folders()) == []


def test_a_folder_and_files_that_begin_alike(hub: Hub, url: str, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for path in ("logs/x", "logs.json", "logs2/y"):
        assert bucket.put_new(path, b"1")
    assert [stored.path for stored in bucket.list_files("logs")] == ["logs/x"]
    assert list(bucket.list_folders()) == ["logs", "logs2"]
    with pytest.raises(Absent):
        bucket.fetch("logs", ["y"], tmp_path / "to")


@pytest.mark.parametrize("url", ["hf://buckets/", "hf://buckets/u", "hf://buckets/u/", "hf://buckets//u"])
def test_a_url_without_a_name(url: str) -> None:
    with pytest.raises(UsageError, match="has no name"):
        open_bucket(url)


def test_equal_times_are_decided_by_name(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "a")
    state = read_lineage(bucket, "main")
    hub.clock(datetime(2026, 1, 1, tzinfo=UTC), step_ms=0)
    results = {run: commit(bucket, *make_next(work, state, run)) for run in ("y", "x", "z")}
    assert [run for run, result in results.items() if result.forked] == ["z"]  # the others were first at the time
    for name in ("one", "two"):
        at_home(name, tmp_path)
        assert read_lineage(open_bucket(url, hub.read), "main").parent == "00000002-x"


# Copies on this machine.


def test_nothing_is_downloaded_twice(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    writer = open_bucket(url, hub.write, new=True)
    extend(writer, work, "a")
    made = make_next(work, read_lineage(writer, "main"), "b")
    commit(writer, *made)
    assert hub.down(DATA) == 0  # what was sent from here is here

    def fetch(to: str) -> int:
        hub.clear_requests()
        bucket = open_bucket(url, hub.read)
        state = read_lineage(bucket, "main")
        fetch_checkpoint(bucket, "main", state.parent, state.head_sha256, tmp_path / to)
        assert files_below(tmp_path / to) == files_below(made[0])
        return hub.down(DATA)

    assert fetch("here") == 0
    at_home("another", tmp_path)
    assert fetch("there") > 0
    assert fetch("there again") == 0


def _copies(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache/stepctl/buckets").rglob("*") if path.is_file()]


@pytest.mark.parametrize("harm", [lambda p: p.write_bytes(b"harm"), lambda p: p.write_bytes(b""), os.unlink])
def test_a_bad_copy_is_not_used(hub: Hub, url: str, work: Path, tmp_path: Path, harm: Callable[[Path], object]) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    folder, manifest = make(work, "a")
    commit(bucket, folder, manifest)
    stored = files_below(folder)
    for path in _copies(tmp_path):
        harm(path)
    again = open_bucket(url, hub.write)
    assert read_lineage(again, "main").head == manifest
    fetch_checkpoint(again, "main", manifest.checkpoint, None, tmp_path / "got")
    assert files_below(tmp_path / "got") == stored
    assert {path.stat().st_size for path in _copies(tmp_path)} == {e.size for e in manifest.files} | {
        hub.stored(bucket_of(url))["pre/main/checkpoints/00000001-a/manifest.json"].size
    }


def test_copies_are_a_lineages_own_and_go_with_its_files(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    commit(bucket, *make(work, "a"))
    folder = _copies(tmp_path)[0].parent
    assert folder.parent.stat().st_mode & 0o077 == 0
    commit(bucket, *make(work, "a", lineage="other"))
    commit(open_bucket(url + "2", hub.write), *make(work / "2", "a"))
    assert len(list(folder.parent.iterdir())) == 3
    for run in ("b", "c", "d"):
        extend(bucket, work, run)
        prune(bucket, "main", 1)
    read_lineage(bucket, "main")
    assert len(list(folder.iterdir())) == len(read_lineage(bucket, "main").head.files) + 1  # type: ignore[union-attr]


def test_a_machine_without_room_for_copies(
    hub: Hub, url: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    bucket = open_bucket(url, hub.write, new=True)
    monkeypatch.setattr("stepctl.lineage.buckets.cache.SPARE_BYTES", 1 << 60)
    monkeypatch.setattr("stepctl.lineage.buckets.cache._link", lambda source, target: False)
    folder, manifest = make(work, "a")
    commit(bucket, folder, manifest)
    assert _copies(tmp_path) == []
    fetch_checkpoint(bucket, "main", manifest.checkpoint, None, tmp_path / "got")
    assert files_below(tmp_path / "got") == files_below(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StepctlError, match="cannot lock lineage main on this machine") as error:
        extend(bucket, work, "b")
    assert "XDG_CACHE_HOME" in error.value.next


# Damage.

NAMES = ("adapter.safetensors", "ledger.jsonl", "reference/adapter.safetensors", "manifest.json")
HARMS: dict[str, Callable[[Hub, str, str], None]] = {
    "flipped": lambda hub, bucket, path: hub.flip(bucket, path, 3),
    "a number changed": lambda hub, bucket, path: hub.damage(bucket, path, lambda data: data.replace(b"0.5", b"0.6")),
    "cut": lambda hub, bucket, path: hub.truncate(bucket, path, 7),
    "lost": lambda hub, bucket, path: hub.lose(bucket, path),
    "removed": lambda hub, bucket, path: hub.remove(bucket, path),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_found_and_named(hub: Hub, url: str, work: Path, tmp_path: Path, harm: str, name: str) -> None:
    if (harm == "a number changed" and name not in ("ledger.jsonl", "manifest.json")) or (
        harm == "removed" and name == "manifest.json"  # then it is no checkpoint
    ):
        pytest.skip("nothing to change")
    bucket = open_bucket(url, hub.write, new=True)
    _, manifest = make(work, "a")
    commit(bucket, work / "main-1-a", manifest)
    HARMS[harm](hub, bucket_of(url), f"pre/main/checkpoints/{manifest.checkpoint}/{name}")
    # This machine has good copies; what the Hub sends now is what counts.
    damages = verify(open_bucket(url, hub.read), "main").damages
    assert [damage.path for damage in damages if damage.checkpoint] in ([name], [name, name])
    at_home("another", tmp_path)
    other = open_bucket(url, hub.read)
    assert name in [damage.path for damage in verify(other, "main").damages]
    with pytest.raises(StepctlError, match=name) as error:
        fetch_checkpoint(other, "main", manifest.checkpoint, None, tmp_path / "got")
    assert error.value.code == DamagedCheckpoint.code
    assert files_below(tmp_path / "got") == {}


@pytest.mark.parametrize("gives_up", [False, True])
def test_one_lost_file_does_not_accuse_others(
    hub: Hub, url: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives_up: bool
) -> None:
    """Also with a client that downloads nothing once one file fails."""
    folder, manifest = grown(*make(work, "a"), {f"aaa-{n}": b"%d" % n * 100 for n in range(8)})
    commit(open_bucket(url, hub.write, new=True), folder, manifest)
    hub.lose(bucket_of(url), f"pre/main/checkpoints/{manifest.checkpoint}/reference/adapter.safetensors")
    at_home("another", tmp_path)
    download = HfApi.download_bucket_files

    def strict(api: HfApi, bucket: str, files: list[Any]) -> None:
        if len(files) > 1:
            raise RuntimeError("Task error: HTTP status client error (404 Not Found)")
        download(api, bucket, files)

    if gives_up:
        monkeypatch.setattr(HfApi, "download_bucket_files", strict)
    with pytest.raises(DamagedCheckpoint, match="reference/adapter"):
        fetch_checkpoint(open_bucket(url, hub.read), "main", manifest.checkpoint, None, tmp_path / "got")


def test_a_damaged_choice_is_found(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for run in ("a", "b"):
        extend(bucket, work, run)
    choose(bucket, "main", "00000001-a", "rollback")
    (path,) = [path for path in hub.stored(bucket_of(url)) if "/choices/" in path]
    hub.damage(bucket_of(url), path, lambda data: data.replace(b"00000001-a", b"00000001-b"))
    (damage,) = verify(bucket, "main").damages
    assert "choices/000001" in damage.problem
    with pytest.raises(Changed):
        bucket.uncached().read(path.removeprefix("pre/"))


def _meanwhile(hub: Hub, match: str, act: Callable[[], object], meanwhile: Callable[[], object]) -> list[StepctlError]:
    """Do something while a request of ``act`` hangs."""
    errors: list[StepctlError] = []

    def run() -> None:
        try:
            act()
        except StepctlError as error:
            errors.append(error)

    hub.faults(Fault(match, nth=1, hang=True))
    thread = threading.Thread(target=run)
    thread.start()
    hub.wait_held()
    meanwhile()
    hub.release()
    thread.join(30)
    return errors


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"other"), lambda p: os.truncate(p, 10)])
def test_a_source_that_changes_on_its_way(hub: Hub, url: str, work: Path, change: Callable[[Path], object]) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "a")
    folder, manifest = make_next(work, read_lineage(bucket, "main"), "b")
    (error,) = _meanwhile(
        hub, "paths-info", lambda: commit(bucket, folder, manifest), lambda: change(folder / "adapter.safetensors")
    )
    assert error.code == "source_changed"
    assert "the lineage is as it was" in error.safe
    state = read_lineage(bucket, "main")
    assert (state.parent, state.incomplete) == ("00000001-a", ["00000002-b"])
    assert verify(bucket, "main").damages == []
    with pytest.raises(StepctlError, match="changed after its manifest was made"):
        commit(bucket, folder, manifest)


# Progress.


def test_progress_of_a_slow_transfer(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    bucket = open_bucket(url, hub.write, new=True, report=lambda done, total: said.append((done, total)))
    folder, manifest = grown(*make(work, "a"), {"optimizer": random.Random(0).randbytes(1 << 20)})
    hub.faults(Fault(UP + ".*/xorbs", delay=0.5), Fault(DATA, delay=0.5))
    commit(bucket, folder, manifest)
    size = sum(entry.size for entry in manifest.files)
    assert {total for _, total in said} == {size}
    assert sorted(said) == said
    assert said[-1] == (size, size)
    said.clear()
    at_home("another", tmp_path)
    fetch_checkpoint(bucket, "main", manifest.checkpoint, None, tmp_path / "got")
    assert said[-1][0] == said[-1][1] > 1 << 20


def test_a_client_without_the_replaced_reporters(
    hub: Hub, url: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import _xet_progress_reporting as reporting

    from stepctl.lineage.buckets import hf_progress

    with hf_progress.uploads(1, print):
        assert reporting.XetUploadProgressReporter.__class__ is not type
    assert reporting.XetUploadProgressReporter.__class__ is type
    with monkeypatch.context() as patch:
        patch.delattr(reporting, "XetUploadProgressReporter")
        with hf_progress.uploads(1, print):
            assert not hasattr(reporting, "XetUploadProgressReporter")
    monkeypatch.setattr(hf_progress, "importlib", SimpleNamespace(import_module=lambda name: object()))
    said: list[int] = []
    bucket = open_bucket(url, hub.write, new=True, report=lambda done, total: said.append(done))
    extend(bucket, work, "a")
    assert said == []
