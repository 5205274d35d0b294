-- What consumers say to SQLite in its own way. BEGIN IMMEDIATE has locked everything.

-- A plus before a column takes its affinity away, so that the claims' index can be used.
-- fragment: key_as_claimed
+«t».«key»

-- json_type and json_extract raise on text that is no JSON; in a condition, AND does not come to them then.
-- fragment: is_object
json_valid(«state») AND (json_type(«state») = 'object' OR json_type(«state») = 'null')

-- fragment: due_state
(«state» IS NULL OR ({is_object} AND json_extract(«state», '$."«name»"') IS NULL))

-- A value that another program wrote meanwhile is kept.
-- fragment: markable_state
{due_state}

-- fragment: broken_state
CASE WHEN «state» IS NULL THEN 0 WHEN NOT json_valid(«state») THEN 1
     ELSE json_type(«state») NOT IN ('object', 'null') END

-- fragment: row_failed_state
(«state» IS NOT NULL AND json_valid(«state») AND json_type(«state», '$."«name»".failed') IS NOT NULL)

-- With CASE, because outside of a condition AND would look at both of its sides.
-- fragment: member_state
CASE WHEN json_valid(«state») THEN json_quote(json_extract(«state», '$."«name»"')) END

-- fragment: row_done_state
(CASE WHEN json_valid(«state») THEN json_extract(«state», '$."«name»"') IS NOT NULL AND NOT {row_failed} ELSE 0 END)

-- fragment: row_cleared_state
«state» = json_remove(«state», '$."«name»"')

-- fragment: marked_state
«state» = json_set(CASE WHEN json_type(«state») = 'object' THEN «state» ELSE '{}' END, '$."«name»"', json(:mark))

-- Only a column shows what its type makes of a value; a cast does something else.
-- name: make_words
CREATE TEMP TABLE rowlock_words (given, word «status_type»)

-- name: try_word
INSERT INTO rowlock_words VALUES (:word, :word) RETURNING word

-- How many values these two are; UNION compares as its first part, the user's column, does.
-- name: count_values
SELECT count(*) FROM (
    SELECT «status» FROM «table» WHERE false UNION SELECT word FROM rowlock_words WHERE given IN (:word, :other_word))

-- A column holds values of any type, whatever its own is.
-- name: not_a_time
SELECT CAST(«due_at» AS text) FROM (SELECT «due_at» FROM «table» LIMIT 1000) some WHERE {not_a_time} LIMIT 1

-- name: draw_claim
UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'rowlock_consumer_claims'

-- fragment: fresh_number
(SELECT seq FROM sqlite_sequence WHERE name = 'rowlock_consumer_claims')
