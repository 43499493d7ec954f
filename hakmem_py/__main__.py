"""python -m hakmem_py SUBCOMMAND"""

import sys

from .cli import main

try:
    sys.exit(main())
except ModuleNotFoundError as error:
    if str(error.name).startswith(__package__):
        raise
    sys.exit(f"hakmem: {error.name} is not installed here: run make env, then . .venv/bin/activate")
