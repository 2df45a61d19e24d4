"""Make reports from the accounts, and write them as text, Markdown, CSV and JSON.

charge       the report for the finance office: GPU-hours by account and model with weights, and balances
drawing      draw the parts of a report that are SVG, in the colours of a light and a dark ground
efficiency   compare the use of resources by jobs with their requests, and propose a better request
ended        group the jobs that ended in a period, by how they ended and by name, in one pass over them
export       write a report as plain tables: JSON with a versioned schema, CSV after RFC 4180
facts        query the accounts for reports: sums that SQL makes, and rows of few columns
folder       keep reports in a folder: dated files, an index, a limit on their number
frame        put a report together: period, footer and definitions around its sections
html         write a report as one HTML page that needs no other file, no script and no network
incidents    the reports on failures, on health, and on processes outside of jobs
mail         write mails: a report for its readers, and a notice of one job for its owner
metrics      write the state and the sums of the accounts as metrics, in Prometheus' text format
model        the model of a report: sections of figures, bars and tables, without any markup
numbers      print numbers, each in one form for all formats of a report
overview     the overview: one page on the use of the GPUs, by user, and on waste
queueing     the reports on waits and on capacity
registry     the reports and the formats there are
request      a request for a report, its answer, and the controller's end of the reporter
status       the present state of the host: as data for metrics, as a report, and for a wall screen
text         write a report as text: 78 columns, for a terminal and for mail
users        the reports by user, account, partition, model or tag; on the largest users and jobs
utilization  the report on the use of the GPUs: classes, each GPU, the hours of the week
waste        the report on waste: who was charged more than needed, and the header line that prevents it
wording      the words of reports: models, times, lists, and the definitions at the foot
"""
