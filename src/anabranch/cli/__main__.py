"""`python -m anabranch.cli` is the `anabranch` command."""

import sys

from anabranch.cli.main import main

sys.exit(main())
