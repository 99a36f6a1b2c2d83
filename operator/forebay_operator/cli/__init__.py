"""The operator's subcommands; each module's `main(argv)` returns an exit status."""
