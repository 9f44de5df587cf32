"""The selectors, one subject a file; every module here is found and registered by itself."""
