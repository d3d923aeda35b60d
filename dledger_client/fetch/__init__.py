"""Reading queues from replicas: fetch, failover between replicas, records."""
