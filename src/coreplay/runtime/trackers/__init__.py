"""One tracker a file; each registers on import, and imports its own library when it is made."""
