"""Clients of the emulated Hub in processes of their own, that can be killed and set against each other."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.doubles.hub import Fault, Hub


class Client:
    """A forked process, the leader of its group, that waits for ``go`` and then acts.

    ``home`` keeps its copies: another home is another machine.
    """

    def __init__(self, act: Callable[[], object], home: Path) -> None:
        self._wait, self._start = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(act, home)

    def _run(self, act: Callable[[], object], home: Path) -> None:
        code = 1
        try:
            os.setsid()
            os.environ.update({"XDG_CACHE_HOME": str(home), "HF_HOME": str(home / "hf")})
            os.close(self._start)
            os.read(self._wait, 1)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def go(self) -> None:
        """Let it act."""
        os.close(self._start)

    def end(self) -> int:
        """Wait for it: 0, or minus the signal that killed it."""
        os.close(self._wait)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def together(acts: Sequence[Callable[[], object]], homes: Path) -> None:
    """Several machines act at once."""
    clients = [Client(act, homes / str(number)) for number, act in enumerate(acts)]
    for client in clients:
        client.go()
    assert [client.end() for client in clients] == [0] * len(clients)


def killed(hub: Hub, act: Callable[[], object], home: Path, fault: Callable[[int], Fault]) -> bool:
    """Whether the client that did ``act`` was killed by the fault that is made for its process."""
    client = Client(act, home)
    hub.faults(fault(client.pid))
    client.go()
    code = client.end()
    hub.faults()
    assert code in (0, -signal.SIGKILL), code
    return code != 0
