"""`rowlock copy`: a queue moves from one store to another."""
