"""Both sides of the FLARE adapter in one process, without FLARE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nvflare.collab import CollabCallError

from federation.engine import Worker
from federation.flare import COORDINATOR, ClientApp, build_reach
from federation.remote import Remote


@dataclass
class InProcessProxy:
    """A hospital's proxy without FLARE: the first `lost` calls fail, all others succeed."""

    client: ClientApp
    lost: int = 0
    timeouts: list[float] = field(default_factory=list)

    def __call__(self, *, timeout: float) -> InProcessProxy:
        self.timeouts.append(timeout)
        return self

    def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
        if self.lost > 0:
            self.lost -= 1
            raise CollabCallError("near", "answer", TimeoutError("nothing came"))
        return self.client.answer(key, question, wait_s)


def flare(workers: Mapping[str, Worker], **settings: float) -> Remote:
    """The engine of the FLARE adapter, with every hospital in this process."""
    clients = {
        site: build_reach(InProcessProxy(ClientApp(worker, lambda: COORDINATOR))) for site, worker in workers.items()
    }
    return Remote(clients, tuple(clients), **settings)  # type: ignore[arg-type]
