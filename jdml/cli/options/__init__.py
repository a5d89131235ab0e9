"""Options of the commands that train, in parts: each has its fields, its check and its one product."""
