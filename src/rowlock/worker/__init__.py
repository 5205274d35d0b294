"""The room that claims: ask the store, wait well, count, and stay alive while doing so."""
