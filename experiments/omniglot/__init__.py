"""All methods on Omniglot, one short training."""
