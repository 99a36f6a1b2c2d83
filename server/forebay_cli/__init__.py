"""The `forebay` command: finds a subcommand by name and imports only what that one needs."""
