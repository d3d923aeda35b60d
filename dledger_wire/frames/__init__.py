"""Message frames: one message as it is stored and sent, alone and in arrays."""
