"""A pool of child processes: its supervisors, the child's side, and what they say to each other."""
