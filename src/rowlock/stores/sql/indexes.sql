-- Each index costs on every enqueue, claim and finish (SQLite with ready + held + unique: 77 k jobs/s, one more 58 k,
-- one more 45 k). All are partial, so that a finished job is in none of them.
CREATE INDEX rowlock_jobs_ready ON rowlock_jobs (queue, priority DESC, position) WHERE state = 'queued';
CREATE INDEX rowlock_jobs_held ON rowlock_jobs (claimed_by) WHERE state = 'running';
CREATE UNIQUE INDEX rowlock_jobs_unique ON rowlock_jobs (task, unique_key)
    WHERE {holds_unique_key};
CREATE INDEX rowlock_jobs_expiring ON rowlock_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'queued');
CREATE INDEX rowlock_jobs_isolated ON rowlock_jobs (position) WHERE isolate > 0 AND state = 'queued';
CREATE INDEX rowlock_history_job ON rowlock_history (job_id);
CREATE INDEX rowlock_logs_job ON rowlock_logs (job_id);
CREATE INDEX rowlock_consumer_claims_held ON rowlock_consumer_claims (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX rowlock_consumer_claims_waiting ON rowlock_consumer_claims (consumer, run_at) WHERE claimed_by IS NULL;
CREATE INDEX rowlock_consumer_claims_batch ON rowlock_consumer_claims (batch_id) WHERE batch_id IS NOT NULL;
