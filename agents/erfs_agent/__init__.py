"""The agent: one per node; reports, protects, forwards."""
