"""Actions of a policy: `grammar` parses and prints them, `rules` checks them against a page, `calls` reads calls."""
