"""Plugins: the registry that finds and builds them, the discovery behind it, and the contracts of what they return."""
