"""A recording station: a recorder, two analysers, an uploader and a janitor around one table."""
