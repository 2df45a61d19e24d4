"""Handlers of requests. Handlers that write run within the transaction of a turn."""
