"""The engine's adapters and samplers: cached, snapshotted, recovered, saved."""
