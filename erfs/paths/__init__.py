"""The path engine: arrays, next hops, protection, ordering, verification. Pure."""
