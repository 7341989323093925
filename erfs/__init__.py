"""ERFS: what controller, agents and referee agree on. Pure: nothing here does I/O, but for `aio` and `cli`."""
