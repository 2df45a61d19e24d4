"""The parts of fgtop.

snapshot  what is shown: GPUs, jobs and their history
view      what the user chose, and what a key does
layout    snapshot and view as lines of text
fields    the columns of the list of jobs
screen    the terminal: the only module that imports Textual
"""
