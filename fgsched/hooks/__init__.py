"""Run the programs of a site: prolog, epilog and submit filter.

filtering     decide about submissions with the answers of the submit filter
process       the controller's end of the runner and of the relay of events
programs      the programs of a site as data, and who may change them
relay         process that passes events on to a command or a socket of the site
runner        process that runs the programs of the site
subscription  read the events of a controller: batches that survive its restart
"""
