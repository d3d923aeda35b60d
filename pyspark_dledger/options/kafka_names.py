"""Option and column names of Spark's Kafka source and sink: accepted aliases, and hints for the others.

Owns the two lists; docs/reference/spark.md ("From Kafka") says the same to users.
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
    "groupIdPrefix": "queries need no consumer group, remove it (groupId publishes a query's progress)",
    "kafkaConsumer.pollTimeoutMs": "did you mean readTimeoutMs?",
    "fetchOffset.numRetries": "did you mean readTimeoutMs?",
    "fetchOffset.retryIntervalMs": "did you mean readTimeoutMs?",
}
WRITE_HINTS = {"includeHeaders": "a column 'properties' is always written if it exists, remove it"}

COLUMN_HINTS = {
    "key": "use queue_key (selects the queue) or keys (indexed for lookups) for Kafka's key",
    "value": "use body for Kafka's value",
    "partition": "use queue_id for Kafka's partition",
    "headers": "use properties map<string,string> for Kafka's headers",
}
