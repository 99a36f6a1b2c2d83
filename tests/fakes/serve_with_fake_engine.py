"""`forebay serve`, but with the fake engine: everything else is the real server."""

import sys

from forebay_server.arguments import parse_args
from forebay_server.cli import serve
from forebay_server.errors import StartupError
from forebay_server.termination import report_failure


def main() -> int:
    try:
        return serve(parse_args(sys.argv[1:]), engine_module="tests.fakes.fake_engine")
    except StartupError as error:
        report_failure(error)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
