"""One job: what its script says, what its process is given, what is due next, and what became of it."""
