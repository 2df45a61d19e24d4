-- Version 5: the capacity of a card, in ten-thousandths of it. More than 10000: the site oversubscribes it, and its
-- jobs may hold this multiple of its share and of its memory. An earlier program would take that for damage.
ALTER TABLE card ADD COLUMN capacity INTEGER NOT NULL DEFAULT 10000 CHECK (capacity >= 10000);
DROP TRIGGER no_card_is_over_held;
DROP TRIGGER no_card_comes_to_be_over_held;

CREATE TRIGGER no_card_is_over_held AFTER INSERT ON hold
WHEN (SELECT sum(share) FROM hold WHERE gpu = NEW.gpu) > (SELECT capacity FROM card WHERE gpu = NEW.gpu)
  OR (SELECT sum(memory) FROM hold WHERE gpu = NEW.gpu)
     > (SELECT usable * capacity / 10000 FROM card WHERE gpu = NEW.gpu)
BEGIN
  SELECT RAISE(ABORT, 'a card would be held beyond what it has');
END;

CREATE TRIGGER no_card_comes_to_be_over_held AFTER UPDATE ON hold
WHEN (SELECT sum(share) FROM hold WHERE gpu = NEW.gpu) > (SELECT capacity FROM card WHERE gpu = NEW.gpu)
  OR (SELECT sum(memory) FROM hold WHERE gpu = NEW.gpu)
     > (SELECT usable * capacity / 10000 FROM card WHERE gpu = NEW.gpu)
BEGIN
  SELECT RAISE(ABORT, 'a card would be held beyond what it has');
END;
