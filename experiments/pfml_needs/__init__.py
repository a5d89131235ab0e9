"""Where PFML's proxies begin and end, and what follows from it."""
