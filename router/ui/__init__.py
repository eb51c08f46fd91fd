"""The live page: static files, and the JSON that they show."""
