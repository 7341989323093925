"""The `erfs` command; one file a subcommand, loaded on use."""
