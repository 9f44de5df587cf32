"""One federated algorithm a file; each registers on import."""
