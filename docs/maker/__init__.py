"""Build the site: computed pictures, pages from docstrings and records, and checks of the result."""
