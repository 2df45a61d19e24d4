"""What a site configured, and what its operators changed since."""
