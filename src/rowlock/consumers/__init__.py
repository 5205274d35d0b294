"""A user's own table as the queue: its rows say what is due, and outcomes are written into them."""
