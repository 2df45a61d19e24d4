"""The requests: who asks, what each one means, and what is answered. Those that write do so inside a turn."""
