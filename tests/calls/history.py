"""Two projects on one bucket: what the rules foresee is held against what is on the disk after every operation."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from tests.calls.projects import Call, Project, Teller
from tests.calls.rules import Checkpoint, Decision, Rules, Run, Trace, make_trace
from tests.doubles.forked import Client, Refusal, hold, outcome, until
from tests.doubles.project import rows

from stepctl.calls.request import TrainRequest
from stepctl.calls.train import train
from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.store import read_lineage, verify
from stepctl.runs.report import Report
from stepctl.traces.rows import Source

UNFINISHED = ("created", "starting", "running", "commit_pending")
EVER, NOW_AND_THEN = 1e-9, 15.0


class History:
    """The system under test and the rules, side by side."""

    def __init__(self, model: Path, seen: Counter[str]) -> None:
        memory = Path("/dev/shm")  # where there is one, thousands of small writes cost no disk
        self.base = Path(tempfile.mkdtemp(prefix="stepctl-history-", dir=memory if memory.is_dir() else None))
        self.model, self.seen, self.rules = model, seen, Rules()
        self.projects = [self._project("a"), self._project("b")]
        self.traces: list[Trace] = []
        self.keys: list[str] = []
        self.place = self.base / "bucket"
        self.bucket = open_bucket(str(self.place))
        self.gone: set[str] = set()
        self.calls = self.checks = 0

    def _project(self, name: str) -> Project:
        path = self.base / name
        path.mkdir()
        (path / "stepctl.toml").write_text("")
        hold(path)
        return Project(path)

    def close(self) -> None:
        """End what still runs."""
        for project in self.projects:
            if project.live:
                hold(project.path)
                self.wait_for_job(project)
        shutil.rmtree(self.base)

    # --- asking ---------------------------------------------------------------------------------------------------

    def new_trace(self, count: int) -> Trace:
        number = len(self.traces)
        trace = make_trace(f"t{number}.jsonl", rows(count, 100 * number))
        (self.base / trace.name).write_bytes(trace.data)
        self.traces.append(trace)
        return trace

    def new_key(self) -> str:
        self.keys.append(f"k{len(self.keys)}")
        return self.keys[-1]

    def world(self, project: Project, call: Call | None = None) -> World:
        """The surroundings of a call, as the command line makes them."""
        options: dict[str, object] = {"bucket": str(self.place), "model": str(self.model)}
        if call is not None:
            options["train.grad_accum"], options["keep_checkpoints"] = call.group, call.keep
            options["train.save_every_minutes"] = EVER if call.every_step else NOW_AND_THEN
        self.calls += 1
        teller = Teller(self.base / f"notices{self.calls}")
        return World(
            load_settings(options, {}, project.path), teller, wait=lambda seconds: time.sleep(min(seconds, 0.004))
        )

    def request(self, call: Call, **more: Any) -> TrainRequest:
        ask = call.ask
        path = str(self.base / ask.trace.name)
        return TrainRequest(
            paths=(path,),
            sources=(Source(name=path, data=ask.trace.data),),
            key=ask.key,
            go_on=ask.go_on,
            fresh=ask.fresh,
            expect_step=ask.expect,
            **more,
        )

    def train(self, project: Project, call: Call, **more: Any) -> Any:
        world = self.world(project, call)
        return outcome(lambda: train(world, self.request(call, **more)))

    def client(self, project: Project, call: Call, **how: Any) -> tuple[Client, Path]:
        """The call in another process; where it says what it does."""
        world = self.world(project, call)
        assert isinstance(world.listener, Teller)
        request = self.request(call)
        client = Client(lambda: train(world, request), self.base / f"answer{self.calls}", **how)
        return client, world.listener.path

    # --- foreseeing -----------------------------------------------------------------------------------------------

    def ends(self, project: Project, run: Run) -> set[str]:
        """The states that an ended run may be given, from what its job left."""
        result = project.result(run)
        if result is not None and result["state"] != "commit_pending":
            return {result["state"]}
        newest = self.rules.newest(run)
        whole = newest is not None and newest.whole
        if result is not None:
            return {"done" if whole else "stopped"}
        if project.record(run.name)["job"] is None or not (project.folder(run) / "events.jsonl").exists():
            return {"needs_trace", "failed"}
        cancelled = (project.folder(run) / "control" / "cancel").exists()
        return {"done" if whole else "cancelled" if cancelled else "failed"}

    def foresee_settling(self, project: Project, only: Run | None = None) -> dict[str, set[str]]:
        """What any call does first: commit what ended runs saved. The states that they get."""
        states = {}
        for run in sorted(project.open, key=lambda run: run.name):
            if only not in (None, run) or (project.live is not None and project.live.run is run):
                continue
            result, step = project.result(run), project.saved(run)
            died = result is None and not (project.folder(run) / "control" / "cancel").exists()
            if step is not None and (died or (result is not None and result["state"] == "commit_pending")):
                node = self.rules.checkpoint(run, step)
                if node.name not in self.rules.nodes:
                    self.rules.store(node)
                    self.rules.choose_root(run)
                    self.seen["committed by another call"] += 1
                self.rules.choose_root(run)
                self.rules.nodes[node.name].forked = not self.rules.on_path(node.name)
                self.gone |= self.rules.doomed(run.keep)
            elif died and (newest := self.rules.newest(run)) is not None:
                newest.forked = not self.rules.on_path(newest.name)
            states[run.name] = self.ends(project, run)
        return states

    def foresee_run(self, call: Call, decision: Decision, name: str = "") -> Run:
        """The run that a call makes on the head as it is."""
        new_root = decision.fresh and not self.rules.empty
        return Run(
            name=name,
            ask=call.ask,
            key=decision.key,
            rows_start=decision.rows_start,
            parent=f"root-{name}" if new_root else self.rules.head,
            from_step=0 if new_root else self.rules.head_step,
            new_root=new_root,
            group=call.group,
            keep=call.keep,
            every_step=call.every_step,
        )

    # --- looking --------------------------------------------------------------------------------------------------

    def meet(self, project: Project, call: Call, decision: Decision, name: str | None = None) -> Run:
        """The run that a call made is the one that was foreseen."""
        assert not decision.refused
        assert decision.replay is None
        if name is None:
            [name] = project.unknown()
        run, record = self.foresee_run(call, decision, name), project.record(name)
        found = {each: record[each] for each in ("key", "parent", "from_step", "new_root", "steps_planned")}
        assert found == {
            "key": run.key,
            "parent": run.parent,
            "from_step": run.from_step,
            "new_root": run.new_root,
            "steps_planned": run.steps,
        }
        assert record["trace"]["rows_start"] == run.rows_start
        assert record["trace"]["sha256"] == call.ask.trace.sha256
        project.runs[name] = run
        project.open = [other for other in project.open if other.name != name] + [run]
        self.seen["continued"] += run.rows_start > 0
        self.seen["fresh"] += run.new_root
        return run

    def stored(self) -> list[str]:
        """The complete checkpoints in the bucket."""
        return sorted(path.parent.name for path in self.place.glob("main/checkpoints/*/manifest.json"))

    def ever_stored(self, run: Run) -> list[str]:
        """New checkpoints of a run: those in the bucket, and those that a later one's ledger names: pruned by now."""
        new = [name for name in self.stored() if name not in self.rules.nodes]
        named = set(new)
        for name in new:
            text = (self.place / "main" / "checkpoints" / name / "ledger.jsonl").read_text()
            named |= {json.loads(line)["checkpoint"] for line in text.splitlines()}
        return sorted(name for name in named if name not in self.rules.nodes and name[9:] == run.name)

    def adopt(self, run: Run, *, whole: bool = True, again: bool = False) -> None:
        """Take in what a run stored, checkpoint by checkpoint; each must hold what the rules say.

        ``whole`` says that no commit was cut short: then a fresh start has moved the head. ``again`` says that the
        commit of a checkpoint that is known already came to its end only now.
        """
        for name in self.ever_stored(run):
            node = self.rules.checkpoint(run, int(name[:8]))
            assert node.name == name
            if (self.place / "main" / "checkpoints" / name / "manifest.json").exists():
                self.check_content(node)
            self.rules.store(node)
            if whole or self._root_is_chosen(run):
                self.rules.choose_root(run)
            node.forked = not self.rules.on_path(name)
            self.gone |= self.rules.doomed(run.keep)
            self.seen["checkpoints"] += 1
        newest = self.rules.newest(run)
        if newest is not None and (again or self._root_is_chosen(run)):
            self.rules.choose_root(run)
        if newest is not None and again:
            newest.forked = not self.rules.on_path(newest.name)
            self.gone |= self.rules.doomed(run.keep)

    def _root_is_chosen(self, run: Run) -> bool:
        files = self.place.glob("main/choices/0*.json")
        return any(json.loads(path.read_text())["at"] == run.parent for path in files)

    def check_content(self, node: Checkpoint) -> None:
        folder, run = self.place / "main" / "checkpoints" / node.name, node.run
        manifest = json.loads((folder / "manifest.json").read_text())
        found = {name: manifest[name] for name in ("parent", "step", "run", "key", "rows_done", "rows_total")}
        assert found == {
            "parent": node.parent,
            "step": node.step,
            "run": run.name,
            "key": run.key,
            "rows_done": node.rows_done,
            "rows_total": len(run.ask.trace.rows),
        }
        assert manifest["trace_sha256"] == run.ask.trace.sha256
        state = json.loads((folder / "optimizer.safetensors").read_text())
        assert (state["chain"], state["trained"]) == (node.chain, node.trained), "rows were lost, doubled or swapped"

    def check(self, *, exact: bool = True) -> None:
        """The disk is as the rules say. Not ``exact``: something died, and pruning may not have come to its end."""
        stored, rules = set(self.stored()), self.rules
        assert stored <= set(rules.nodes), f"nobody can have stored {stored - set(rules.nodes)}"
        gone = rules.alive - stored
        assert gone == self.gone & rules.alive if exact else gone <= self.gone
        rules.alive, self.gone = stored, set()
        state = read_lineage(self.bucket, "main")
        assert state.parent == rules.head
        assert state.head_step == rules.head_step
        assert not state.notes
        self._check_ledger([msgspec.to_builtins(line) for line in state.ledger])
        self.checks += 1
        if self.checks % 3 == 0:
            self._check_verify()
        for project in self.projects:
            self._check_records(project)

    def _check_ledger(self, ledger: list[dict[str, Any]]) -> None:
        """A line for each checkpoint of the head's ancestry; under a key no row is missing and none is there twice."""
        done: dict[str, int] = {}
        path = self.rules.ancestry(self.rules.head)
        assert len(ledger) == len(path)
        for line, node in zip(ledger, path, strict=True):
            run = node.run
            assert line == line | {
                "checkpoint": node.name,
                "parent": node.parent,
                "run": run.name,
                "key": run.key,
                "trace_sha256": run.ask.trace.sha256,
                "rows_done": node.rows_done,
                "rows_total": len(run.ask.trace.rows),
                "from_step": run.from_step,
                "step": node.step,
            }
            before = self.rules.nodes.get(node.parent)
            steps = node.step - (before.step if before else 0)
            begin = before.rows_done if before and before.run is run else run.rows_start
            assert steps == -(-(node.rows_done - begin) // run.group)
            if run.key is not None:
                assert begin == done.get(run.key, 0), f"rows of {run.key} are lost or doubled"
                done[run.key] = node.rows_done

    def _check_verify(self) -> None:
        found = verify(self.bucket, "main")
        assert not found.damages
        assert not found.notes
        assert set(found.checkpoints) == self.rules.alive
        for path in found.extra:
            assert Path(path).name.startswith(".tmp-"), path
        runs = {name: (project, run) for project in self.projects for name, run in project.runs.items()}
        for name in found.incomplete:
            if name not in self.rules.nodes:  # else its deletion was interrupted
                project, run = runs[name[9:]]
                ended = project.record(run.name)["state"] in ("done", "stopped")
                assert not ended, f"{name} was left by a run that ended well"

    def _check_records(self, project: Project) -> None:
        """No run is left unfinished; one that was seen to have ended stays so, and is not read again."""
        assert not project.unknown()
        waiting = {run.name for run in project.open}
        for name in set(project.runs) - waiting - project.ended:
            assert project.record(name)["state"] not in UNFINISHED
            project.ended.add(name)
        project.ended -= waiting

    def check_end(self, run: Run, report: dict[str, Any], states: set[str]) -> None:
        """A run's final report is what the rules say of its last checkpoint."""
        newest = self.rules.newest(run)
        state, step = report["state"], newest.step if newest else run.from_step
        assert state in states, (report, states)
        found = [report[name] for name in ("from_step", "global_step", "rows_done", "rows_total", "key", "checkpoint")]
        rows_done, name = (newest.rows_done, newest.name) if newest else (run.rows_start, None)
        assert found == [run.from_step, step, rows_done, len(run.ask.trace.rows), run.key, name]
        assert report["steps_run"] == len(report["losses"]) == step - run.from_step
        assert report["resumed_from"] == (None if run.parent.startswith("root") else run.parent)
        assert not report["replayed"]
        codes = {"done": 0, "stopped": 6, "cancelled": 7, "failed": 1, "needs_trace": 1}
        forked = newest is not None and newest.forked and state in ("done", "stopped")
        if state in ("done", "stopped"):
            assert report["forked"] == forked
        assert report["exit_code"] == (4 if forked else codes[state])
        self.seen["forked"] += forked
        self.seen[state] += 1

    def check_settled(self, project: Project, states: dict[str, set[str]]) -> None:
        """The runs of ``states`` have ended as they had to; what is in their records says so."""
        for run in list(project.open):
            if run.name in states:
                record = project.record(run.name)
                assert record["state"] not in UNFINISHED, record
                self.check_end(run, record["report"], states[run.name])
                assert not (project.folder(run) / "out").exists()
                project.open.remove(run)

    def check_answer(self, found: Any, call: Call, decision: Decision) -> None:
        """A call that trains nothing: refused, or answered from the ledger."""
        if decision.refused:
            assert isinstance(found, Refusal), found
            assert found.code in decision.refused
            assert found.exit_code == 4
            self.seen[found.code] += 1
            return
        line = decision.replay
        assert line is not None
        assert isinstance(found, Report), found
        assert found.replayed
        answer = (found.run, found.state, found.exit_code, found.from_step, found.global_step, found.rows_done)
        assert answer == (line.run.name, "done", 0, line.run.from_step, line.step, line.rows_done)
        assert (found.key, found.checkpoint, found.forked) == (line.run.key, line.name, False)
        self.seen["replayed"] += 1

    # --- waiting --------------------------------------------------------------------------------------------------

    def ended(self, project: Project, run: Run, report: Report | None, step: int | None, *states: str) -> None:
        """The run's last checkpoint is at ``step``, None when it has none; its report and record say the same."""
        newest = self.rules.newest(run)
        assert (newest.step if newest else None) == step, project.record(run.name)
        data = project.record(run.name)["report"] if report is None else msgspec.to_builtins(report)
        self.check_end(run, data, set(states) or {"done"})
        project.open.remove(run)
        assert project.record(run.name)["state"] not in UNFINISHED

    def wait_until_held(self, project: Project, point: str) -> None:
        assert project.live is not None
        path = project.folder(project.live.run) / "held"
        until(lambda: path.exists() and path.read_text() == point, point)

    def wait_for_job(self, project: Project) -> Any:
        """Wait for the job, and for the client that follows it: its report. Who was detached learns nothing."""
        live = project.live
        assert live is not None
        report = None
        if live.client is not None:
            report = None if live.client.killed else live.client.wait()
            live.client.all_ended()
        else:
            until(lambda: os.waitpid(project.record(live.run.name)["job"]["pid"], os.WNOHANG)[0], "the job's end")
        project.live = None
        return report

    def release(self, project: Project) -> Any:
        hold(project.path)
        return self.wait_for_job(project)

    @property
    def alive(self) -> set[str]:
        return self.rules.alive

    @property
    def free(self) -> list[Project]:
        return [project for project in self.projects if project.live is None]

    @property
    def held(self) -> list[Project]:
        return [project for project in self.projects if project.live is not None]

    @property
    def locked(self) -> bool:
        return any(project.live is not None and project.live.locked for project in self.projects)
