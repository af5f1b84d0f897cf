"""`python -m anabranch.cli` is the `anabranch` command."""

import sys

from anabranch.cli.start import main

sys.exit(main())
