"""Files: ingest writes a row for each finished file, the janitor deletes what a policy allows."""

from rowlock.files.oldest import DeletedOldest, RefusedFile, delete_oldest

__all__ = ["DeletedOldest", "RefusedFile", "delete_oldest"]
