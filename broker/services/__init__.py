"""One class per part of the gRPC surface; each registers its methods on a ``dledger_wire.rpc.Server``."""
