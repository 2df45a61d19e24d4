"""The page of `fgsched web`: each user's own process, which speaks to the controller as the user.

__main__  the process of the page, which `fgsched web` starts
acting    what forms change: requests of the user, as the commands send them
app       the table of pages, the forms, and the streams of open pages
control   the orders of the command to the process: open with a code, status, stop
frame     what the frame of every page shows, and the templates
guard     who may ask the page for what: host, origin, session, method, size and rate, headers
live      what changes on open pages: one subscription to the events for all of them
output    read the output of a job: the end of a regular file, and what is added to it
reading   what pages read of the controller
server    serve at the loopback or a Unix socket, with limits of connections and time
submitting the form of a submission: read as fgsub reads its line, tested, submitted
visit     a request for a page, as a value
pages     one module for a page: data to the context of a template, pure
"""
