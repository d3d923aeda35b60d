"""The names that Spark's Kafka source and sink have for things: what is taken as it is, and what is said of the rest.

Owns the two lists; docs/reference/spark.md ("From Kafka") tells users the same.
"""

from __future__ import annotations

READ_ALIASES = {
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.group.id": "groupId",
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minOffsetsPerTrigger": "minMessagesPerTrigger",
    "maxTriggerDelay": "maxTriggerDelayMs",
    "includeHeaders": "includeProperties",
}
WRITE_ALIASES = {"kafka.bootstrap.servers": "bootstrap"}

READ_HINTS = {
    "groupIdPrefix": "queries need no group here, leave it out (groupId shows a query's progress)",
    "kafkaConsumer.pollTimeoutMs": "did you mean readTimeoutMs?",
    "fetchOffset.numRetries": "did you mean readTimeoutMs?",
    "fetchOffset.retryIntervalMs": "did you mean readTimeoutMs?",
}
WRITE_HINTS = {"includeHeaders": "a column 'properties' is written when there is one, leave it out"}

COLUMN_HINTS = {
    "key": "Kafka's key is queue_key (which queue) or keys (what it is found by) here",
    "value": "Kafka's value is body here",
    "partition": "Kafka's partition is queue_id here",
    "headers": "Kafka's headers are properties map<string,string> here",
}
