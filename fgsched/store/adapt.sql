-- Statements that adapt the table job to the fields and states that the program knows.

-- name: add_column
-- A field of a job that an older queue does not have.
ALTER TABLE job ADD COLUMN {name} {type} {default};

-- name: rules
-- The statement that made the table.
SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'job';

-- name: change_rules
-- What SQLite's documentation of ALTER TABLE allows for a CHECK: no row is written.
UPDATE sqlite_schema SET sql = :sql WHERE type = 'table' AND name = 'job';
