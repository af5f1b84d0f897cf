"""What our own clients and brokers say to each other in fields that Pulsar leaves to applications.

A peer that does not know a word answers as if it had not been said, so each of them works with Pulsar too.
"""

from __future__ import annotations

from typing import Final

# In the metadata of a PRODUCER request: attach nothing, but answer with the last sequence id of that producer name. The
# way to ask a sealed segment, which refuses producers: Pulsar answers TopicTerminatedError.
ASK_SEQUENCE_ID: Final = "anabranch.last-sequence-id"
