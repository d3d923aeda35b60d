"""The HTTP side of the console: listening, checks of requests and sockets, log ins and sessions."""
