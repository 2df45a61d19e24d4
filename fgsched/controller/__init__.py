"""The controller: take in events, decide, commit, and then carry out the effects."""
