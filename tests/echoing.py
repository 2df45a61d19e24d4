"""A helper process for tests: answers each line with itself. A line "half" is answered by half a line."""

import os


def main() -> None:
    unread = b""
    while data := os.read(0, 1 << 16):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            os.write(1, b"ha" if line == b"half" else line + b"\n")
