"""Which jobs start where, and in which order: pure, of the queue, the cards and what a site allows."""
