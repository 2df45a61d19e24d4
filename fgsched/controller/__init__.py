"""The controller: it takes in events, decides with the core, commits, and then carries out the effects."""
