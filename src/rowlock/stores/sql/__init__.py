"""Each verb of a store that speaks SQL, written once; a database's folder has what truly differs."""
