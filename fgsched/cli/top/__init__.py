"""The parts of fgtop.

snapshot  the data: GPUs, jobs and their history
view      the user's choices, and the meaning of keys
layout    snapshot and view as lines of text
fields    the columns of the list of jobs
screen    the terminal: the only module that imports Textual
"""
