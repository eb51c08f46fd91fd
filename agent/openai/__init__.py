"""OpenAI's HTTP API: bodies in, sampling parameters, answers and events out."""
