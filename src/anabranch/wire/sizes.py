"""Limits of payload sizes that most parts need. A module of its own, so that they do not load the codec."""

from __future__ import annotations

from typing import Final

# The most bytes that readers unpack one payload to, unless configured otherwise; producers send nothing larger. The
# limit of brokers is a different one: it applies to payloads as they are stored, which is packed.
UNPACKED_BYTES_MAX: Final = 256 << 20
