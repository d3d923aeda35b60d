"""Calls and streams whatever carries them, and gRPC."""
