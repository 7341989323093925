"""The referee: scenarios, fault plans, backends, measurement, verdicts, reports."""
