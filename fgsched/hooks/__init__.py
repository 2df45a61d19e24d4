"""Run the programs of a site: prolog, epilog and submit filter."""
