"""Ray Serve's router, told to choose replicas as ``routing.py`` says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from monolane.cluster.calls import Call
from monolane.cluster.routing import ranked


class ConversationRouter(RequestRouter):  # type: ignore[misc]
    """Counts requests itself: Ray's own numbers expire after 10 s, and answers may take longer."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._requests: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        call = pending_request.args[0] if pending_request is not None and pending_request.args else None
        conversation, tried = (call.conversation, call.tried) if isinstance(call, Call) else (None, ())
        named = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._requests[replica.replica_id] for name, replica in named.items()}
        return [[named[name]] for name in ranked(conversation, loads, tried)]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self._requests[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        super().on_request_completed(replica_id, internal_request_id)
        self._requests[replica_id] = max(0, self._requests[replica_id] - 1)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        alive = {replica.replica_id for replica in replicas}
        self._requests = Counter({name: count for name, count in self._requests.items() if name in alive})
