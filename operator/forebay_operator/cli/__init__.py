"""The operator's subcommands: each module has `main(argv) -> exit status`."""
