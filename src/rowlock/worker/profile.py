"""What a worker or a poller was asked to be; checked here, shared by its parts.

Only the strategy and the concurrency change later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.options import check_name, check_strategy_applies
from rowlock.strategies import get_strategy


class Profile:
    """One worker's name, queues and order of claims, as its row tells them."""

    def __init__(
        self,
        name: str | None,
        queues: Sequence[str],
        strategy: str,
        poll_interval: Any,
        *,
        max_idle_polls: int = 12,
        takes_every_task: bool = False,
    ) -> None:
        is_number = isinstance(poll_interval, (int, float)) and not isinstance(poll_interval, bool)
        if not is_number or not poll_interval > 0:
            raise ValueError(f"poll_interval={poll_interval!r}: must be more than 0 seconds")
        if type(max_idle_polls) is not int or max_idle_polls < 0:
            raise ConfigurationError(f"max_idle_polls={max_idle_polls!r}: must be a whole number >= 0")
        if isinstance(queues, str):  # a sequence, too
            raise ConfigurationError(f"queues={queues!r}: must be a list of names")
        self.name = None if name is None else check_name("worker_id", name)
        self.queues = tuple(check_name("queue", queue) for queue in queues)
        self.poll_interval: float = poll_interval
        self.max_idle_polls = max_idle_polls
        self.takes_every_task = takes_every_task
        self.concurrency = 1
        self.strategy = strategy

    @property
    def strategy(self) -> str:
        """The order of claiming; may be changed at any time."""
        return self._strategy

    @strategy.setter
    def strategy(self, name: str) -> None:
        self._strategy = get_strategy(name).name

    def check_strategy(self, name: str) -> None:
        """Raise if one of the queues cannot be claimed in this order."""
        for queue in self.queues:
            check_strategy_applies(queue, name)
