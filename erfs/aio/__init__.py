"""Shells shared by every process: the bus over MQTT, the embedded broker, retry, logs. All asyncio of `erfs` is here."""
