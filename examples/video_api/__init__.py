"""A video service whose data and jobs are in one DuckDB file."""
