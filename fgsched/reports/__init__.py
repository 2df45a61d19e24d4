"""Make reports from the accounts, and write them as text, Markdown, CSV and JSON."""
