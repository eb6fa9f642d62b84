"""Runs batches and samples on the engine, and keeps their results."""
