"""Plugins of tests are loaded by runs, as those of users are, and not by pytest when it looks for doctests."""

collect_ignore_glob = ["plugins/*"]
