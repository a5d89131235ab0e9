"""Studies: a package each, with its README, its runs on record, and what makes them."""
