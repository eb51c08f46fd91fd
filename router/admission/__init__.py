"""Who is served when there is not room for everybody: rate limits, queues before the nodes, fair shares of work."""
