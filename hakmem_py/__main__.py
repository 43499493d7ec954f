"""python -m hakmem_py SUBCOMMAND"""

import sys

from .cli import main

sys.exit(main())
