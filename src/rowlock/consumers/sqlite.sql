-- What consumers say to SQLite in its own way. BEGIN IMMEDIATE has locked everything.

-- A plus before a column takes its affinity away, so that the claims' index can be used.
-- fragment: key_as_claimed
+«t».«key»

-- fragment: claim_key
c.row_key

-- fragment: claimed_key
rowlock_consumer_claims.row_key

-- fragment: its_key
its_row_key

-- fragment: given_key
:row_key

-- fragment: order_as_text
«t».«order»

-- fragment: lock_row

-- fragment: walk_indexes

-- json_type and json_extract raise on text that is no JSON; in a condition, AND does not come to them then.
-- fragment: is_object
json_valid(«state») AND (json_type(«state») = 'object' OR json_type(«state») = 'null')

-- fragment: due_state
(«state» IS NULL OR ({is_object} AND json_extract(«state», '$."«name»"') IS NULL))

-- fragment: markable_state
(«state» IS NULL OR ({is_object}))

-- fragment: broken_state
CASE WHEN «state» IS NULL THEN 0 WHEN NOT json_valid(«state») THEN 1
     ELSE json_type(«state») NOT IN ('object', 'null') END

-- fragment: row_failed_state
(«state» IS NOT NULL AND json_valid(«state») AND json_type(«state», '$."«name»".failed') IS NOT NULL)

-- fragment: row_done_state
(«state» IS NOT NULL AND json_valid(«state») AND json_extract(«state», '$."«name»"') IS NOT NULL
 AND json_type(«state», '$."«name»".failed') IS NULL)

-- With CASE, because here AND would look at both of its sides.
-- fragment: row_failed_by_mark
coalesce(CASE WHEN json_valid(«state») THEN json_quote(json_extract(«state», '$."«name»"')) = ({failure_mark}) END, 0)

-- fragment: row_done_by_mark
(CASE WHEN json_valid(«state») THEN json_extract(«state», '$."«name»"') IS NOT NULL AND NOT {row_failed_by_mark} ELSE 0 END)

-- fragment: kept_mark
json_quote(json_extract(json_set('{}', '$.mark', json(:mark)), '$.mark'))

-- fragment: row_cleared_state
«state» = json_remove(«state», '$."«name»"')

-- name: count_all
SELECT count(*) FROM «table»

-- fragment: marked_state
«state» = json_set(CASE WHEN json_type(«state») = 'object' THEN «state» ELSE '{}' END, '$."«name»"', json(:mark))

-- The user's words are bound as they are.
-- fragment: now_running
:running_word

-- fragment: now_due
:due_word

-- fragment: now_word
:word

-- Only a column shows what its type makes of a value; a cast does something else.
-- name: make_words
CREATE TEMP TABLE rowlock_words (given, word «status_type»)

-- name: try_word
INSERT INTO rowlock_words VALUES (:word, :word) RETURNING word

-- How many values these two are; UNION compares as its first part, the user's column, does.
-- name: count_values
SELECT count(*) FROM (
    SELECT «status» FROM «table» WHERE false UNION SELECT word FROM rowlock_words WHERE given IN (:word, :other_word))

-- fragment: held_keys
SELECT row_key

-- fragment: insert_free
INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at, started_at)
SELECT :consumer, «t».«key», :worker, {now}, {now} FROM «table» {by_index}
WHERE {free} AND {as_usual} ORDER BY «ordering» LIMIT :count
RETURNING claim

-- fragment: insert_free_beyond
INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at, started_at)
SELECT :consumer, «t».«key», :worker, {now}, {now} FROM «table» {by_index}
WHERE {beyond} AND {free} AND {as_usual} ORDER BY «ordering» LIMIT :count
RETURNING claim

-- name: draw_claim
UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'rowlock_consumer_claims'

-- fragment: fresh_number
(SELECT seq FROM sqlite_sequence WHERE name = 'rowlock_consumer_claims')

-- name: table_columns
SELECT name, type, pk, "notnull", type FROM pragma_table_xinfo(:table) WHERE hidden <> 1

-- name: table_columns_in
SELECT name, type, pk, "notnull", type FROM pragma_table_xinfo(:table, :schema) WHERE hidden <> 1

-- Indexes that make one column unique, whatever the rest of the row is.
-- name: unique_columns
SELECT max(i.name) FROM pragma_index_list(:table) l JOIN pragma_index_info(l.name) i
WHERE l."unique" = 1 AND l.partial = 0 GROUP BY l.name HAVING count(*) = 1

-- All that a condition may name; a copy of the table takes any value in each of them.
-- name: columns_to_copy
SELECT name, 'A', 1, 0 FROM pragma_table_xinfo(:table) WHERE hidden <> 1

-- name: index_there
SELECT sql FROM sqlite_master WHERE type = 'index' AND name = :name AND tbl_name = :table

-- A write, as in hold_claim.
-- name: hold_claims
UPDATE rowlock_consumer_claims SET note = note
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by = :worker
