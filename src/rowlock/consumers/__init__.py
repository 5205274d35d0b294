"""A user's own table as the queue: what is due is asked of the table, and what is done is written there."""
