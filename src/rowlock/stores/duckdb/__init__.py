"""A queue in a DuckDB file, beside the data of a service that keeps it there; imports no driver by itself."""
