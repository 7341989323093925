"""The kernel backend: real packets through network namespaces of this run's own."""
