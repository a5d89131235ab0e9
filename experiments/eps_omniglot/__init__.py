"""EPS on Omniglot's letters within alphabets."""
