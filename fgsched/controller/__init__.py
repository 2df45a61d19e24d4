"""The conductor: it observes, has the core decide, writes the decisions down, and then carries them out."""
