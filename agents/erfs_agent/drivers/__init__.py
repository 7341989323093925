"""The only code that touches a data plane."""
