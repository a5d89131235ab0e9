"""Potential fields, proxies and wrong labels."""
