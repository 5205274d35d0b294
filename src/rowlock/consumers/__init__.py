"""A user's own table as the queue: what is due is asked of the table, and what is done is written there."""

from rowlock.consumers.consumer import Consumer
from rowlock.consumers.host import ConsumerHost
from rowlock.consumers.row import Row

__all__ = ["Consumer", "ConsumerHost", "Row"]
