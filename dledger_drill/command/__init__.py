"""What ``dledger drill`` makes of its options: the choices, the folder, the cluster."""
