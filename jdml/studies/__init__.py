"""Studies: many runs, their jobs and their protocols."""
