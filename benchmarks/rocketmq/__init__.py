"""RocketMQ's own Java client on dledger beside the same client on RocketMQ: ``python -m benchmarks.rocketmq --help``."""
