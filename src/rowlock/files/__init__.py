"""Files: ingest writes a row for each finished file, the janitor deletes what a policy allows."""

from rowlock.files.oldest import DeletedOldest, delete_oldest
from rowlock.files.records import Cleaned, DeletedRow, FileTrouble, Ingested

__all__ = ["Cleaned", "DeletedOldest", "DeletedRow", "FileTrouble", "Ingested", "delete_oldest"]
