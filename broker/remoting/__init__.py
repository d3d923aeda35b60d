"""RocketMQ's remoting protocol: a face for its clients and tools over the services of this cluster."""
