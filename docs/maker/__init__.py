"""What makes the site: computed pictures, pages from docstrings and records, and the checks of what was built."""
