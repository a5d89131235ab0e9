"""CCP by letter: where classes are many, and those scored are others."""
