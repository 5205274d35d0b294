"""The package that speaks SQL: the store protocol, and one folder per database."""
