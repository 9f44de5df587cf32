"""The sources, one a file; every module here is found and registered by itself."""
