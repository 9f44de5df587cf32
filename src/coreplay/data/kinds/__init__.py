"""The sources, one per file; every module here is found and registered by itself."""
