"""RocketMQ's gRPC clients at a node: apache.rocketmq.v2.MessagingService, a face over the services of the node.  Why: docs/adr/0061."""
