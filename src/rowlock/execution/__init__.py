"""One claim to one outcome: the call, the job's context, residents, a task's own transaction."""
