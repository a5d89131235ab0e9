"""CCP on MNIST in the plane."""
