"""The synchronous clients: the asyncio ones, on an event loop in a thread of their own."""
