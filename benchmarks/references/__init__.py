"""Bare programs that answer the same JSON as the tinymcp target: what Python can do."""
