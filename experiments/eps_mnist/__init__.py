"""EPS on even and odd MNIST."""
