"""This host: its paths, accounts and processes, and how a job comes to be one of them."""
