"""Real servers for the tests: PostgreSQL, a proxy that loses what it is told to lose, PgBouncer.
Not the tests that need them; their fixtures are in tests/conftest.py."""
