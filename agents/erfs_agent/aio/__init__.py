"""The shell of the agent."""
