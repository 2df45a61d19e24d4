"""Handlers of requests. Those that write run within the transaction of a turn."""
