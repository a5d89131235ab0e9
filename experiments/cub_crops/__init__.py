"""All methods over frozen features of bird photographs."""
