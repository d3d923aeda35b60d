"""Which node to ask: metadata, leaders, retries and error responses."""
