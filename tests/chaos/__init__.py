"""The fault suite: real processes and real databases, broken on purpose, and a checker of what they leave."""
