"""Tests of deployments: hosts of their own on this machine, what is installed there, and the files in cluster-configs that do it."""
